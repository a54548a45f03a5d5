"""Runs on tables, of numbers and of texts, as people keep them in files."""

import random
from pathlib import Path

import pytest

from common.ledger import Header, RoundRecord, read
from tests.commands import in_this_process

SPORT = ["match", "goal", "team", "coach", "league", "season"]
MONEY = ["market", "bank", "shares", "profit", "rates", "loan"]
FILLING = ["the", "a", "of", "on", "today", "after", "said", "new", "and", "more"]


def accuracies(folder: Path, patch: pytest.MonkeyPatch, *words: str) -> tuple[Header, list[float]]:
    with in_this_process(folder, patch) as command:
        assert command("lab", "run", "--data", "data", "--nodes", "3", "tensorboard=false", *words) == 0
    (ledger,) = folder.glob("runs/*/ledger.jsonl")
    header, *records = read(ledger)
    assert isinstance(header, Header)
    return header, [record.accuracy for record in records if isinstance(record, RoundRecord)]


def test_a_csv_table_of_patients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sklearn.datasets import load_breast_cancer

    frame = load_breast_cancer(as_frame=True).frame.rename(columns={"target": "label"})
    features = frame.columns.drop("label")
    frame[features] = (frame[features] - frame[features].mean()) / frame[features].std()
    (tmp_path / "data").mkdir()
    frame[100:].to_csv(tmp_path / "data" / "train.csv", index=False)
    frame[:100].to_csv(tmp_path / "data" / "test.csv", index=False)
    header, reached = accuracies(tmp_path, monkeypatch, "model=mlp4", "rounds=3")
    assert {(node.input_shape, node.classes) for node in header.nodes} == {((30,), 2)}
    assert len({node.naming for node in header.nodes}) == 1 and header.nodes[0].naming
    assert reached[-1] > 0.8  # the commoner class alone is 0.65


def test_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(0)
    lines = []
    for number in range(400):
        topic = (SPORT, MONEY)[number % 2]
        sentence = [*draw.choices(topic, k=3), *draw.choices(FILLING, k=7)]
        draw.shuffle(sentence)
        lines.append(f"{number % 2},{' '.join(sentence)}.")
    (tmp_path / "data").mkdir()
    for split, rows in (("train", lines[:300]), ("test", lines[300:])):
        (tmp_path / "data" / f"{split}.csv").write_text("\n".join(["label,text", *rows]) + "\n")
    header, reached = accuracies(tmp_path, monkeypatch, "model=dan", "rounds=5", "local-epochs=2")
    assert header.nodes[0].input_shape == (256,)
    # All but the table of words, whose rows have no order, and a bias of two numbers.
    assert (header.model.tensors, header.model.filtered_tensors) == (7, 5)
    assert reached[-1] > 0.9
