"""SCAFFOLD's direction and its controls, by hand and through a filter."""

import torch

from common import filters
from common.params import Params, add, scale, sub
from common.slots import CONTROL
from tests.client_app.algorithms.small import (
    ANCHOR,
    OWN,
    C,
    G,
    W,
    assert_equal,
    ctx,
    halved,
    local,
    made,
    some,
)


def test_scaffold() -> None:
    c, c_i = some(1), some(2)
    context = ctx(broadcast={CONTROL: c}, memory={CONTROL: c_i})
    rule = made("scaffold").rule
    assert_equal(rule.direction(G, W, context), sub(add(G, c), c_i))
    new = rule.finish(W, 4, context).memory[CONTROL]
    for name in new:
        expected = c_i[name] - c[name] + (ANCHOR[name] - W[name]) / (4 * 0.1)
        torch.testing.assert_close(new[name], expected, atol=1e-13, rtol=0)


def test_scaffolds_control_becomes_the_mean_of_the_filtered_gradients() -> None:
    seen: list[Params] = []

    def noting(params: Params) -> Params:
        filtered = filters.lift(filters.FftHighPass(0.3))(params)
        seen.append({name: x.clone() for name, x in filtered.items()})
        return filtered

    trained = local(made("scaffold", phi=noting), C, OWN)
    mean = {name: sum(g[name] for g in seen) / 6 for name in seen[0]}
    got = trained.finish.memory[CONTROL]
    for name, x in mean.items():
        torch.testing.assert_close(got[name], x, atol=1e-13, rtol=0)


def test_scaffold_option_one_is_filtered_too() -> None:
    trained = local(made("scaffold", phi=halved, scaffold_option="I"), C, OWN)
    plain = local(made("scaffold", scaffold_option="I"), C, OWN)
    assert_equal(trained.finish.memory[CONTROL], scale(0.5, plain.finish.memory[CONTROL]))
    report = trained.finish.report["control-change"]
    assert_equal(report, sub(trained.finish.memory[CONTROL], OWN[CONTROL]))
