"""Shared by all tests: a repeatable hypothesis profile."""

from hypothesis import settings

settings.register_profile("repeatable", deadline=None, derandomize=True, print_blob=False)
settings.load_profile("repeatable")
