"""Checkpoint formats to a few canonical compute layouts."""
