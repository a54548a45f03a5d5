"""Text: that of others made fit for a log, a terminal and a page, and ours as files and keys have it."""

import json

NO_BREAK_SPACE = "\u00a0"
LONGEST = 500  # characters of a sentence that a node sent


def shorten(text: str, limit: int) -> str:
    """``text``, or its beginning and an ellipsis, in at most ``limit`` characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def visible(text: str) -> str:
    """Line breaks become spaces; control and direction marks, which could hide text, become visible."""
    return text if text.isprintable() else "".join(map(_visible, text))


def one_line(text: str) -> str:
    """What a node wrote as one line of visible text, cut to a sentence's length.

    All of it passes here before it goes anywhere: a line of its own in a log could be taken for the server's.
    """
    return " ".join(visible(shorten(text, LONGEST)).split())


def first_line(error: BaseException) -> str:
    """The first line of what an exception says, or else its class."""
    return str(error).strip().split("\n")[0] or type(error).__name__


def kebab(name: str) -> str:
    """A Python name as keys, options and ledgers spell it."""
    return name.replace("_", "-")


def to_json(value: object) -> str:
    """Stable JSON for files that people read: sorted keys, two spaces."""
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _visible(character: str) -> str:
    if character == NO_BREAK_SPACE or character.isprintable():
        return character
    return " " if character.isspace() else "\ufffd"
