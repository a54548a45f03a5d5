"""What people type: the command line, the processes it starts, and runs inside one process."""

from common import __version__ as __version__
