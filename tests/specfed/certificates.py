"""Folders as ``specfed certs`` makes them, and how tests change them."""

from pathlib import Path

from specfed.commands import certificates


def replace(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def other(made: Path) -> Path:
    """Another federation's folder."""
    folder = made.parent / "other"
    certificates.init(["fl.example.org"], folder)
    certificates.issue(["site-a"], folder)
    return folder / "server"
