"""Grammars: what is compiled, what is refused, and that every text has the form that was asked for."""
