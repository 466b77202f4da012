"""The OpenAI-compatible HTTP server: an API process in front of an engine process."""
