"""Logits to tokens: one file a feature, in one ordered pipeline."""
