"""FedCM's momentum before there is one."""

import pytest

from common.params import scale
from tests.client_app.algorithms.small import G, W, assert_equal, ctx, made


@pytest.mark.parametrize("warm", [True, False])
def test_fedcms_first_round(warm: bool) -> None:
    got = made("fedcm", mix=0.2, warm_start=warm).rule.direction(G, W, ctx())
    assert_equal(got, G if warm else scale(0.2, G))
