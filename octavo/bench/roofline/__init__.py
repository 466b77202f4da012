"""How near to this machine's limits a step is, op by op (Williams, Waterman and Patterson 2009)."""
