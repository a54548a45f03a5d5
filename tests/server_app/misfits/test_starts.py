"""Runs that cannot start say why."""

import pytest

from common.errors import DataError, ModelError
from common.ledger import Joined
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


def test_nodes_whose_classes_have_other_names_do_not_start(federation: Federation) -> None:
    nodes = [federation.node(f"site-{i}", data=f"tests.federation:named_{i}") for i in (1, 2)]
    run = federation.run(nodes=nodes)
    assert isinstance(run.error, DataError)
    assert run.end.reason.startswith(
        "the nodes' data do not fit together: site-2 does not name its classes or columns as site-1 does, and"
    )


def test_a_test_set_whose_classes_have_other_names_is_refused(federation: Federation) -> None:
    nodes = [federation.node("site-1", data="tests.federation:named_1"), federation.node("site-2")]
    run = federation.run(nodes=nodes, eval_data="tests.federation:named_2")
    assert isinstance(run.error, DataError)
    assert run.end.reason == (
        "eval-data tests.federation:named_2 does not name its classes or columns as the nodes do"
    )
    assert federation.run("same", nodes=nodes, eval_data="tests.federation:named_1").error is None


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("narrow_net", "the model does not take inputs of (6,)"),
        ("headed_elsewhere", "the model must give (2, 4) logits for 2 rows; it gave (2, 5)"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_before_anybody_trains(
    federation: Federation, model: str, sentence: str
) -> None:
    run = federation.run(model=f"tests.federation:{model}")
    assert isinstance(run.error, ModelError) and sentence in run.end.reason and not run.clients()


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([0, 180], "names row 180, but the data have 180 rows"),
        ([-1, 3], "names row -1, but the data have 180 rows"),
        ([], "it takes row numbers, at least one"),
    ],
)
def test_a_node_with_rows_that_are_none_is_refused_and_only_its_own_log_says_why(
    federation: Federation, rows: list[int], sentence: str, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = [*federation.nodes(2), federation.node("site-3", rows)]
    run = federation.run(nodes=nodes, rounds=1)
    assert run.error is None and {c.client for c in run.clients()} == {"site-1", "site-2"}
    (refused,) = [r.refused for r in run.records if isinstance(r, Joined)]
    assert refused == 'DataError: node "site-3" cannot use its data; its log says why'
    assert sentence in caplog.text
