"""Text that must have a form: grammars compiled by llguidance, and where each sequence stands in its own."""
