"""Paths that lead to nothing that can be read."""

from pathlib import Path

import pytest

from tests.common.datasets.sources import refusal


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("/no/such/folder", "there is no such file or folder"),
        ("./data", "there is no such file or folder"),
        ("a/b/c", "there is no such file or folder"),
        ("", "a file"),
        ("no/such.npz", "there is no such file"),
    ],
)
def test_paths_that_lead_nowhere(
    spec: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if spec:
        assert refusal(spec) == f'data "{spec}": {reason}'
    else:
        assert "neither *.parquet files" in refusal(spec)  # the empty path is the current folder


def test_a_file_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("1,2")
    assert refusal(tmp_path / "data.csv") == (
        f'data "{tmp_path / "data.csv"}" is a file of a kind that cannot be read; takes .npz or a folder'
    )
