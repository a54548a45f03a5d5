"""Shared by all tests: a repeatable hypothesis profile, and one thread for tensors too small for more."""

import torch
from hypothesis import settings

settings.register_profile("repeatable", deadline=None, derandomize=True, print_blob=False)
settings.load_profile("repeatable")
torch.set_num_threads(1)
