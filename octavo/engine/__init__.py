"""Decides: which sequences are computed in which step. Needs numpy at most; knows no device and no text."""
