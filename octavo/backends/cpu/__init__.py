"""The native CPU backend: thin calls into ``octavo._native``."""
