"""What people type: the command line, the processes it starts, and runs inside one process."""

__version__ = "0.1.0"
