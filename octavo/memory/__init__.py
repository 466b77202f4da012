"""Which KV block belongs to whom. Pure ints; touches no tensor."""
