"""FedDyn and its kin, FedDC and FedSpeed: what they remember, and what it adds to a step."""

import torch

from common.params import add, scale, sub
from common.slots import CONTROL
from tests.client_app.algorithms.small import ANCHOR, G, W, assert_equal, ctx, made, some


def test_feddyn_and_feddc_remember_the_way_that_they_went() -> None:
    dual, drift = some(1), some(2)
    new = made("feddyn", dyn_alpha=0.5).rule.finish(W, 3, ctx(memory={"dual": dual})).memory["dual"]
    assert_equal(new, sub(dual, scale(0.5, sub(W, ANCHOR))))
    found = made("feddc", dc_alpha=0.5).rule.finish(W, 3, ctx(memory={"drift": drift})).memory
    assert_equal(found["drift"], add(drift, sub(W, ANCHOR)))
    sent = made("feddc", duals="participants").rule.finish(W, 3, ctx()).report["shift"]
    assert_equal(sent, sub(W, ANCHOR))
    sent = made("fedspeed", duals="participants", speed_mu=0.5).rule.finish(W, 3, ctx()).report["shift"]
    assert_equal(sent, sub(W, ANCHOR))


def test_feddc_by_hand() -> None:
    context = ctx(broadcast={CONTROL: some(1)}, memory={CONTROL: some(2), "drift": some(3)})
    got = made("feddc", dc_alpha=0.5).rule.direction(G, W, context)
    for name in G:
        pull = 0.5 * (W[name] + some(3)[name] - ANCHOR[name])
        torch.testing.assert_close(got[name], G[name] + pull - some(2)[name] + some(1)[name])
