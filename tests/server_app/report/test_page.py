"""What the page says: values, suspects, problems, and what a long list comes down to."""

import json
from pathlib import Path

import pytest

from common.ledger import ClientRecord, Joined, Record
from server_app.report.run_view import Problem, flagged, problems, view
from tests.server_app.report.ledgers import FLAG, RECORDS, accepted, done, header, node
from tests.server_app.report.pages import report, rows, words


def test_the_page_holds_the_values(tmp_path: Path) -> None:
    text = report(tmp_path, RECORDS)
    assert rows(text, "Contribution") == [
        ["a", "50", "3", "0.750 ± 0.025", "0.875", "1.000", "0.700", "0", "0", "0", "0"],
        ["b", "50", "2", "0.375 ± 0.050", "0.250", "0.250", "0.650", "1", "1", "0", "0"],
        ["never", "100", "0", "–", "–", "–", "–", "0", "0", "0", "0"],
    ]
    seen = words(text)
    for sentence in (
        "2026-12-01-demo-7f3a ! completed-degraded 1 December 2026, 14:03 UTC · 71 s",
        "1 of 3 rounds lost a reply",
        "accuracy 75.0 % loss 1.500 rounds 3 of 3 nodes 3 time 71 s",
        "cnn5, 61,234 parameters in 10 tensors",
        "fc2.weight (10 × 64)",
        "FFT, r=0.05, on 6 of 10 tensors",
        "measured on the nodes’ own validation rows, round 3",
        "3 with 300 training examples as they report them",
        "From 25.0 % in round 1 to 75.0 % in round 3; best: 75.0 % in round 3.",
        "From 0.500 in round 1 to 1.500 in round 3; best: 0.500 in round 1.",
        "Last values: a 0.750, b 0.375.",
    ):
        assert sentence in seen
    assert 'style="width:25.0%"' in text  # b's weight beside a's


def test_suspects_and_flags_are_advisory_and_come_with_evidence(tmp_path: Path) -> None:
    seen = words(report(tmp_path, RECORDS))
    assert "advisory b lowest score in 2 of 3 rounds over the whole run" in seen
    assert (
        "advisory b lowest score of all robust-z, flagged in 1 round (2); strongest in round 2: "
        "-4.5 against a threshold of -3.5" in seen
    )
    assert "cannot prove that a client has the data" in seen


def test_of_several_flags_the_strongest_is_the_evidence() -> None:
    values = {1: -4.0, 2: -9.0, 3: -5.0}
    records = [
        accepted(n, "a", 0.1, 0.1, flags=(FLAG.model_copy(update={"value": value}),))
        for n, value in values.items()
    ]
    (entry,) = flagged(view([header("a"), *records]))
    assert (entry.rounds, entry.strongest_round, entry.strongest.value) == ((1, 2, 3), 2, -9.0)


def test_the_strongest_flag_is_farthest_beyond_its_threshold_on_whichever_side() -> None:
    values = {1: 9.0, 2: 2.0, 3: 5.0}
    records = [
        accepted(n, "a", 0.1, 0.1, flags=(FLAG.model_copy(update={"value": value, "threshold": 10.0}),))
        for n, value in values.items()
    ]
    (entry,) = flagged(view([header("a"), *records]))
    assert (entry.strongest_round, entry.strongest.value) == (2, 2.0)


def test_the_caveat_stands_without_suspects_too(tmp_path: Path) -> None:
    seen = words(report(tmp_path, [header("a"), accepted(1, "a", 1.0, 1.0), done(1, 0.5)]))
    assert "No client stands out" in seen and "cannot prove" in seen
    assert "Nothing: every reply came in time and was accepted." in seen


def test_equal_problems_of_several_rounds_are_one_line(tmp_path: Path) -> None:
    late = "no reply within 600 s"
    records: list[Record] = [header("a", "b")]
    for number in (1, 2, 3, 5):
        records += [
            ClientRecord(round=number, client="a", status="missing", reason=late),
            ClientRecord(round=number, client="b", status="missing", reason=late),
        ]
        records.append(done(number, moved=False, accepted=0, reason="no usable reply"))
    records.append(Joined(round=4, node=node("b"), refused="b is connected already"))
    assert problems(view(records)) == (
        Problem((1, 2, 3, 5), "missing", ("a", "b"), late),
        Problem((1, 2, 3, 5), "model not moved", (), "no usable reply"),
        Problem((4,), "refused", ("b",), "b is connected already"),
    )
    assert rows(report(tmp_path, records), "What went wrong") == [
        ["1–3, 5", "missing", "a, b", late],
        ["1–3, 5", "model not moved", "–", "no usable reply"],
        ["4", "refused", "b", "b is connected already"],
    ]


def test_long_lists_are_cut(tmp_path: Path) -> None:
    names = [f"site-{number}" for number in range(1, 43)]
    records: list[Record] = [header(*names)]
    records += [ClientRecord(round=1, client=name, status="missing", reason="silent") for name in names]
    records += [ClientRecord(round=2, client=name, status="error", reason=f"at {name}") for name in names]
    text = report(tmp_path, records)
    assert "site-1, site-2, site-3, site-4, site-5 and 37 more" in words(text)
    assert len(rows(text, "What went wrong")) == 30
    assert "and 13 more; report.json has them all." in words(text)
    assert len(json.loads((tmp_path / "report.json").read_text())["problems"]) == 43


@pytest.mark.parametrize(("layer", "named"), [("", "the head’s"), ("body.0.weight", "body.0.weight’s")])
def test_the_layer_whose_entropy_is_read_has_its_name(tmp_path: Path, layer: str, named: str) -> None:
    for weighting, more in (("spectralfed", ""), ("spectralfuse", " and alignment of the head’s")):
        records = [header("a", **{"weighting": weighting, "entropy-layer": layer})]
        assert f"entropy of {named} update{more}" in words(report(tmp_path, records))


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("off", "Guards off – nothing is looked for"),
        (
            "observe",
            "Guards observe – noise, copies, replays and empty updates are flagged; their weight stays",
        ),
        ("weight", "Guards weight – noise, replays and empty updates are left out of their round"),
    ],
)
def test_the_facts_say_what_guards_did(tmp_path: Path, mode: str, said: str) -> None:
    assert said in words(report(tmp_path, [header("a", guards=mode)]))


def test_a_run_that_scores_nobody_observes_nothing(tmp_path: Path) -> None:
    for keys in ({"weighting": "uniform"}, {"contribution": "off"}):
        assert "Guards off – this run scores nobody" in words(report(tmp_path, [header("a", **keys)]))
    assert "Guards weight – " in words(report(tmp_path, [header("a", weighting="uniform", guards="weight")]))


def test_a_ledger_from_before_there_were_guards_can_be_shown(tmp_path: Path) -> None:
    old = header("a")
    config = {key: value for key, value in old.config.items() if not key.startswith("guard")}
    assert "Guards –" in words(report(tmp_path, [old.model_copy(update={"config": config})]))
