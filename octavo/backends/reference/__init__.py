"""The specification of every op in plain numpy float32: obvious, slow, the oracle of the op tests."""

from octavo.backends.reference.backend import ReferenceBackend

__all__ = ["ReferenceBackend"]
