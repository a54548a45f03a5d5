"""What models lose on the server's own data."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from common.batches import to_tensors
from common.datasets import Examples
from common.params import carried, copy_of, load_into, to_arrays, trainable
from server_app.proxy import proxy_losses
from tests.federation import normed_net

CPU = torch.device("cpu")


def test_it_is_the_mean_cross_entropy_of_a_batch_in_evaluation_mode() -> None:
    draw = np.random.default_rng(0)
    examples = Examples(draw.normal(size=(7, 6)).astype(np.float32), np.arange(7) % 4, 4)
    frame, other = normed_net((6,), 4), normed_net((6,), 4)
    load_into(carried(other), {**to_arrays(carried(other)), "1.running_mean": np.full(48, 0.3)})
    before = to_arrays(copy_of(frame.state_dict()))
    proxy = proxy_losses(frame, examples, CPU, batch_size=4)
    assert proxy.batches == 2
    parameters, buffers = copy_of(trainable(other)), to_arrays(copy_of(carried(other)))
    for w in parameters.values():
        w.requires_grad_()
    other.eval()
    for batch, rows in enumerate((range(0, 4), range(4, 7))):
        x, y = to_tensors(examples, np.array(rows), CPU)
        loss = proxy.loss(parameters, buffers, batch)
        assert float(loss.detach()) == pytest.approx(float(F.cross_entropy(other(x), y).detach()))
        loss.backward()  # type: ignore[no-untyped-call]
    assert all(w.grad is not None and w.grad.any() for w in parameters.values())
    # Neither the model that gave the shape nor the buffers moved.
    assert frame.training
    assert all((x == before[name]).all() for name, x in to_arrays(frame.state_dict()).items())
    assert all((x == buffers[name]).all() for name, x in to_arrays(carried(other)).items())
