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
