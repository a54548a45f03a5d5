"""The contribution table, computed by hand."""

import pytest

from server_app.report.contribution import contribution_table
from tests.server_app.report.ledgers import RECORDS, accepted, header


def test_the_contribution_table_holds_hand_computed_values() -> None:
    a, b, never = contribution_table(RECORDS)
    # The last half of rounds 1, 2, 3 is rounds 2 and 3: (0.75 + 1.0) / 2.
    assert (a.client, a.score, a.std, a.mean_weight, a.final_weight) == ("a", 0.75, 0.025, 0.875, 1.0)
    assert (a.rounds, a.quarantined, a.errors, a.missing, a.examples) == (3, 0, 0, 0, 50)
    assert a.signals == {"alignment": None, "entropy": pytest.approx((0.6 + 0.7 + 0.8) / 3)}
    assert (b.client, b.score, b.std, b.mean_weight, b.final_weight) == ("b", 0.375, 0.05, 0.25, 0.25)
    assert (b.rounds, b.flagged, b.quarantined, b.errors, b.missing) == (2, 1, 1, 0, 0)
    assert (never.client, never.score, never.mean_weight, never.final_weight) == ("never", None, None, None)
    assert (never.rounds, never.missing, never.examples) == (0, 0, 100)


def test_the_mean_weight_is_over_the_last_two_of_four_rounds() -> None:
    weights = enumerate((0.9, 0.7, 0.5, 0.25), start=1)
    (row,) = contribution_table([header("a"), *(accepted(n, "a", None, weight) for n, weight in weights)])
    assert row.mean_weight == 0.375


def test_clients_without_scores_stand_by_weight_then_by_number() -> None:
    records = [
        header("site-10", "site-2", "site-1"),
        accepted(1, "site-1", None, 0.2),
        accepted(1, "site-2", None, 0.8),
    ]
    assert [row.client for row in contribution_table(records)] == ["site-2", "site-1", "site-10"]
