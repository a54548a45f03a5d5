"""A process that answers many messages checks each configuration once."""

import pytest
from flwr.app import Context, RecordDict

from client_app.app import _configs
from common import memo
from common.config import Value
from common.errors import ConfigError


def context(**run: Value) -> Context:
    return Context(1, 2, {"name": "site-a", "data": "digits"}, RecordDict(), run)


def test_it_is_checked_once_where_values_are_kept() -> None:
    with memo.keeping():
        (node, run), (same_node, same_run) = (_configs(context(rounds=3)) for _ in range(2))
    assert run is same_run and node is same_node
    assert (run.rounds, node.name) == (3, "site-a")
    assert _configs(context(rounds=3))[1] is not run


@pytest.mark.parametrize("lookalike", [True, 1.0])
def test_a_value_that_only_equals_a_checked_one_is_still_refused(lookalike: Value) -> None:
    with memo.keeping():
        assert _configs(context(rounds=1))[1].rounds == 1
        with pytest.raises(ConfigError, match='"rounds" in the run configuration'):
            _configs(context(rounds=lookalike))
