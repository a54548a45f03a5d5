"""What drift records say: the rule at its thresholds, and which records it may judge."""

import pytest

from common.ledger import DriftRecord, LayerDrift
from server_app.report.drift_view import COLUMNS, csv_rows, judge, last_trial


def record(number: int = 1, share: float | None = 0.1, **more: object) -> DriftRecord:
    """A round in which band 0 has this share of a summed Dist of 9."""
    dist = () if share is None else (9 * share, *(((1 - share),) * 9))
    values = {"round": number, "source": "updates", "filtered": False, "clients": 3, "seconds": 0.1}
    return DriftRecord.model_validate(values | {"dist": dist, "std": dist, "energy": dist} | more)


@pytest.mark.parametrize(
    ("share", "verdict"),
    [
        (1.0, "concentrated"),
        (0.2000001, "concentrated"),
        (0.1999999, "between"),
        (0.1500001, "between"),
        (0.1499999, "flat"),
        (0.1, "flat"),
        (0.0500001, "flat"),
        (0.0499999, "higher"),
        (0.0, "higher"),
    ],
)
def test_the_verdict_follows_the_share_of_band_0(share: float, verdict: str) -> None:
    found = judge([record(share=share)])
    assert (found.verdict, found.share) == (verdict, pytest.approx(share))


def test_the_sentences() -> None:
    assert judge([record(share=0.4)]).text == (
        "Drift is concentrated in the low band: filtering is likely to help."
    )
    assert judge([record(share=0.1)]).text == (
        "Drift is flat over frequencies: filtering will mostly shorten steps."
    )
    assert "Use diagnostics=gradients, or filter=none" in judge([record(filtered=True)]).text


def test_it_is_the_mean_over_the_rounds() -> None:
    assert judge([record(1, 0.1), record(2, 0.3), record(3, None)]).share == pytest.approx(0.2)


def test_what_has_passed_the_filter_is_not_judged() -> None:
    hidden = record(1, 0.02, filtered=True)
    assert (judge([hidden]).verdict, judge([hidden]).share) == ("hidden", None)
    assert judge([hidden, record(2, 0.4)]).share == pytest.approx(0.4)
    assert judge([hidden, record(2, None)]).verdict == "hidden"


def test_without_two_clients_that_differ_there_is_no_verdict() -> None:
    assert judge([record(share=None)]).verdict == "unknown"
    assert judge([record(share=None, dist=(0.0,) * 10)]).verdict == "unknown"


def layer(name: str, before: float | None, after: float | None) -> LayerDrift:
    return LayerDrift(name=name, relative=before, filtered_relative=after)


def test_the_trial_is_that_of_the_last_round_with_one() -> None:
    tried = (layer("a", 2.0, 1.0), layer("b", 1.0, 1.5), layer("c", 1.0, None), layer("d", None, 1.0))
    found = last_trial([record(1, layers=tried[:1]), record(2, layers=tried), record(3)])
    assert found is not None
    assert (found.round, found.tensors, found.falls) == (2, 2, 1)
    assert last_trial([record(3)]) is None


def test_rows_of_a_spreadsheet() -> None:
    tensors = (LayerDrift(name="w", absolute=1.0, relative=2.0, cosine=0.5, filtered_relative=1.5),)
    start, *rows = csv_rows([record(4, 0.1, layers=tensors, cka=0.75)])
    assert start == list(COLUMNS)
    assert [row[4:6] for row in rows] == [
        *(["band", str(m)] for m in range(10)),
        ["tensor", "w"],
        ["models", ""],
    ]
    assert rows[0] == [4, "updates", "false", 3, "band", "0", 0.9, 0.9, 0.9, *[None] * 6]
    assert rows[10] == [
        4,
        "updates",
        "false",
        3,
        "tensor",
        "w",
        None,
        None,
        None,
        1.0,
        2.0,
        0.5,
        1.5,
        None,
        None,
    ]
    assert rows[11][-1] == 0.75


@pytest.mark.parametrize(("dist", "energy"), [((), (0.1,) * 10), ((0.0,) * 10, ()), ((), ())])
def test_bands_without_distances_or_energies(dist: tuple[float, ...], energy: tuple[float, ...]) -> None:
    rows = list(csv_rows([record(1, dist=dist, std=dist, energy=energy)]))[1:]
    assert len(rows) == max(len(dist), len(energy))
    assert all((row[6] is None, row[8] is None) == (not dist, not energy) for row in rows)
