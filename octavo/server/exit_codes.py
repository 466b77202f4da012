"""Exit statuses of the command line and of both server processes, after sysexits.h. 0 means an asked-for stop, nothing else."""

BAD_CONFIG = 64
PORT_IN_USE = 69
ENGINE_FAULT = 70
