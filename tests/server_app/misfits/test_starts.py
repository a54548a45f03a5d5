"""Runs that cannot start say why."""

import pytest

from common.errors import DataError, ModelError
from tests.federation import Federation


def test_nodes_with_different_classes_do_not_start(federation: Federation) -> None:
    nodes = [
        federation.node("site-1"),
        federation.node("site-2", range(30), data="tests.federation:three_classes"),
    ]
    run = federation.run(nodes=nodes)
    assert isinstance(run.error, DataError)
    assert run.end.reason == (
        "the nodes' data do not fit together: site-1 has 4 classes and inputs of 6, "
        "but site-2 has 3 classes and inputs of 6"
    )


@pytest.mark.parametrize(
    ("config", "error", "sentence"),
    [
        ({"model": "tests.federation:headless_net"}, ModelError, "head"),
        ({"head": "2.wieght"}, ModelError, '"2.weight"'),
        ({"model": "cnn6"}, ModelError, '"cnn5"'),
        ({"eval_data": "tests.federation:three_classes"}, DataError, "3 classes"),
        ({"eval_data": "nowhere.npz"}, DataError, "nowhere.npz"),
        (
            {"weighting": "fedlaw", "proxy_data": "tests.federation:three_classes"},
            DataError,
            "proxy-data tests.federation:three_classes has 3 classes",
        ),
    ],
)
def test_a_run_that_cannot_start_says_why(
    federation: Federation, config: dict[str, str], error: type[Exception], sentence: str
) -> None:
    run = federation.run(**config)
    assert isinstance(run.error, error)
    assert sentence in run.end.reason and run.end.status == "failed"


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([0, 180], "names row 180, but the data have 180 rows"),
        ([-1, 3], "names row -1, but the data have 180 rows"),
        ([], "it takes row numbers, at least one"),
    ],
)
def test_a_node_with_rows_that_are_none_is_refused(
    federation: Federation, rows: list[int], sentence: str
) -> None:
    nodes = [*federation.nodes(2), federation.node("site-3", rows)]
    run = federation.run(nodes=nodes, rounds=1)
    assert run.error is None and {c.client for c in run.clients()} == {"site-1", "site-2"}
    assert sentence in str(run.records)
