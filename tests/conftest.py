"""Shared by all tests: a repeatable hypothesis profile, one thread for tensors too small for more, and Ctrl-C."""

import signal

import torch
from hypothesis import settings

settings.register_profile("repeatable", deadline=None, derandomize=True, print_blob=False)
settings.load_profile("repeatable")
torch.set_num_threads(1)
# A shell ignores Ctrl-C for what it starts in the background, and so would all processes that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
