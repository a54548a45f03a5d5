"""Free-rider screening: z-scores by hand, persistence, and when it keeps silent."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.free_rider import FreeRiderTest, History, robust_z

NAMES = tuple("abcde")
LOW = np.array([0.24, 0.23, 0.22, 0.27, 0.04])
EVEN = np.array([0.21, 0.20, 0.19, 0.20, 0.20])


def test_robust_z_by_hand() -> None:
    z = robust_z(np.array([0.24, 0.23, 0.22, 0.21, 0.10]))
    assert z == pytest.approx([1.2616, 0.6445, 0, -0.6745, -11.4319], abs=1e-4)


def test_other_readings_of_the_papers_rule_by_hand() -> None:
    # The paper says (x - median) / MAD and leaves open of what, and in which unit. Of the shares themselves:
    # median 0.22, MAD 0.01. Of their logarithms, without 0.6745: (ln 0.10 - ln 0.22) / 0.04652.
    shares = np.array([0.24, 0.23, 0.22, 0.21, 0.10])
    assert robust_z(np.exp(shares))[-1] == pytest.approx(0.6745 * -0.12 / 0.01) == pytest.approx(-8.094)
    assert robust_z(shares)[-1] / 0.6745 == pytest.approx(-16.949, abs=1e-3)


def test_equal_shares_have_no_outlier_and_a_single_one_is_scaled_by_the_mean_deviation() -> None:
    assert robust_z(np.full(5, 0.2)).tolist() == [0] * 5
    # MAD 0; mean absolute deviation ln(2) / 5, times 1.2533.
    z = robust_z(np.array([0.22, 0.22, 0.22, 0.22, 0.11]))
    assert z == pytest.approx([0, 0, 0, 0, -5 / 1.2533], abs=1e-4)


@given(st.lists(st.floats(0.001, 1), min_size=3, max_size=9), st.floats(0.1, 10))
def test_the_unit_of_the_shares_does_not_matter(shares: list[float], unit: float) -> None:
    x = np.array(shares)
    assert robust_z(np.maximum(x, 1e-2) * unit) == pytest.approx(robust_z(np.maximum(x, 1e-2)), abs=1e-5)


def rounds(*shares: np.ndarray | None) -> list[dict[str, object]]:
    history: History = {}
    flags = []
    for one in shares:
        history, found = FreeRiderTest().look(history, NAMES, one)
        flags.append(dict(found))
    return flags


def test_a_client_is_flagged_in_its_fourth_low_round_of_five_with_evidence() -> None:
    flags = rounds(LOW, LOW, EVEN, LOW, LOW, EVEN)
    assert [list(f) for f in flags] == [[], [], [], [], ["e"], []]
    flag = flags[4]["e"]
    assert flag.value < flag.threshold == -3.5  # type: ignore[attr-defined]
    assert "share 0.040" in flag.text and "4 of its last 5" in flag.text  # type: ignore[attr-defined]


def test_a_low_but_not_tiny_share_is_not_an_accusation() -> None:
    assert not any(rounds(*[np.array([0.22, 0.221, 0.219, 0.22, 0.12])] * 6))  # 0.12 is above half of 0.2


def test_fewer_than_five_clients_or_no_shares_leave_the_history_alone() -> None:
    test = FreeRiderTest()
    history, _ = test.look({}, NAMES, LOW)
    assert test.look(history, NAMES[:4], LOW[:4]) == (history, {})
    assert test.look(history, NAMES, None) == (history, {})


def test_the_thresholds_can_be_set() -> None:
    low = np.array([0.22, 0.221, 0.219, 0.22, 0.12])
    test = FreeRiderTest(below_equal=0.7)
    history: History = {}
    for _ in range(4):
        history, flags = test.look(history, NAMES, low)
    assert list(flags) == ["e"]
    assert FreeRiderTest(z=-1e6, below_equal=0.7).look(history, NAMES, low)[0]["e"][-1] is False
