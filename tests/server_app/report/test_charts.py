"""The charts of scores and weights, and the sentences that stand for those that cannot be drawn."""

import re
from pathlib import Path

import pytest

from common.ledger import Record
from tests.server_app.report.ledgers import RECORDS, accepted, done, header
from tests.server_app.report.pages import report, rows, words


def test_the_bands_are_two_standard_deviations(tmp_path: Path) -> None:
    text = report(tmp_path, RECORDS)
    # a: 0.5 +- 0.2, 0.625 +- 0.1, 0.75 +- 0.05. The last half shows 0.275 (b: 0.375 - 0.1) to 0.8, which an
    # axis from 0.2 to 0.8 in steps of 0.2 holds; height 320 - 30 - 38 = 252, so 420 pixels a unit, from 282.
    # The plot is 1000 - 50 - (22 + 6.9) = 921.1 wide.
    assert 'points="50,72 510.6,61.5 971.1,30 971.1,72 510.6,145.5 50,240"' in text


def test_bands_that_would_cover_all_lines_are_a_sentence_instead(tmp_path: Path) -> None:
    text = report(
        tmp_path,
        [
            header("a", "b"),
            accepted(1, "a", 0.55, 0.55, score_std=0.2),
            accepted(1, "b", 0.45, 0.45, score_std=0.19),
            done(1),
        ],
    )
    assert "0.38 by now, are more than all lines are apart (0.10)" in words(text)
    assert "<polygon" not in text


def test_an_unfinished_round_has_no_equal_share(tmp_path: Path) -> None:
    # The server was killed when it had written one of the two clients of round 3. Axis from 0 to 0.8,
    # 252 pixels from 282 up; equal shares of 1/2 at 282 - 0.5 * 315 = 124.5, in rounds 1 and 2 alone.
    start: list[Record] = [header("a", "b")]
    for number in (1, 2):
        start += [accepted(number, "a", 0.6, 0.6), accepted(number, "b", 0.4, 0.4), done(number, 0.5)]
    text = report(tmp_path, [*start, accepted(3, "a", 0.8, 0.8)])
    line = re.search(r'<title>equal shares</title><polyline points="([^"]*)"></polyline></g>', text)
    assert line and line[1] == "50,124.5 510.6,124.5"


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"contribution": "off"}, "Contribution was off in this run, so there are no scores."),
        ({"weighting": "uniform"}, "The weighting “uniform” computes no scores."),
        ({"weighting": "examples"}, "The weighting “examples” computes no scores."),
        ({}, "No round came as far as scores."),
    ],
)
def test_without_scores_a_sentence_stands_for_the_chart(
    tmp_path: Path, config: dict[str, str], sentence: str
) -> None:
    records = [header("a", "b", **config), accepted(1, "a", None, 0.5), accepted(1, "b", None, 0.5)]
    text = report(tmp_path, [*records, done(1, 0.5)])
    assert sentence in words(text)
    assert "all clients whose replies were accepted had the same weight" in words(text)
    assert 'id="scores-title"' not in text and 'id="weights-title"' not in text and ">Score<" not in text


def test_nothing_measured_is_said_and_not_drawn(tmp_path: Path) -> None:
    text = report(tmp_path, [header("a"), accepted(1, "a", 1.0, 1.0), done(1)])
    seen = words(text)
    assert "The accuracy was never measured." in seen and "The loss was never measured." in seen
    assert "accuracy – loss – rounds 1 of 3" in seen and "Accuracy and loss not measured" in seen


def test_a_hundred_clients_and_300_rounds(tmp_path: Path) -> None:
    names = [f"site-{number}" for number in range(1, 101)]
    records: list[Record] = [header(*names)]
    for number in range(1, 301):
        records += [accepted(number, name, i / 100, i / 5050) for i, name in enumerate(names, start=1)]
        records.append(done(number, 0.5, rounds=300))
    text = report(tmp_path, records)
    labels = re.findall(r'class="label"><title>([^<]*)</title>', text)
    assert sorted(set(labels) - {"accuracy", "loss"}) == [
        "site-1", "site-100", "site-2", "site-3", "site-98", "site-99",
    ]  # fmt: skip
    assert "Labelled are the 3 highest and 3 lowest of 100 clients" in words(text)
    assert len(rows(text, "Contribution")) == 100
    assert len(text) < 3_000_000
