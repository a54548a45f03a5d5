"""Everything a user can act on.

    SpecfedError            exit 1
      ConfigError           exit 2   a key, value or command-line option
      DataError             exit 3   a data set, a partition, a class count
      ModelError            exit 4   a model, its head
      UnreachableError      exit 5   a server that is not there, or does not speak to us
      PortError             exit 6   a port in use
      RunFailed             exit 7   a federation that could not go on
      PolicyError           exit 8   a run that a site's policy does not let in

An error's text is one sentence that names the thing, what it takes and what it got. The command line
prints it after ``error:`` and leaves with the exit code; it never prints a traceback for one of these.
"""

import difflib
from collections.abc import Iterable


class SpecfedError(Exception):
    """Base of all errors that a user can act on."""

    exit_code = 1


class ConfigError(SpecfedError):
    """A configuration key, value or command-line option that cannot be used."""

    exit_code = 2


class DataError(SpecfedError):
    """Data that is missing, empty, unreadable, or does not fit the other nodes' data."""

    exit_code = 3


class ModelError(SpecfedError):
    """A model that cannot be built, or whose head cannot be told."""

    exit_code = 4


class UnreachableError(SpecfedError):
    """A server or node that does not answer."""

    exit_code = 5


class PortError(SpecfedError):
    """A port that is in use or may not be bound."""

    exit_code = 6


class RunFailed(SpecfedError):
    """A run that ended before its last round."""

    exit_code = 7


class PolicyError(SpecfedError):
    """A run that a site's own policy does not let in."""

    exit_code = 8


def exit_code_for(kind: str) -> int:
    """The exit code of the error class called ``kind``; 1 for a name that is not one of ours."""
    classes: dict[str, type[SpecfedError]] = {c.__name__: c for c in SpecfedError.__subclasses__()}
    return classes.get(kind, SpecfedError).exit_code


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint such as ``Did you mean "local-epochs"?`` for a misspelt word; empty if nothing is near."""
    matches = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f'Did you mean "{matches[0]}"?' if matches else ""
