"""Building blocks that models compose. They know names and shapes; not devices, formats or batching."""
