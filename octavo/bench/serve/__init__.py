"""``octavo bench serve`` and ``octavo bench sweep``: a running server under load, seen from a client's side."""
