"""Computes one step: turns a plan into flat arrays, runs the model, samples."""
