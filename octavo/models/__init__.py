"""One file a model family, one line each in the registry."""
