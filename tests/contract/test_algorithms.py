"""Both halves of every algorithm, in the real apps: they meet, they train, and they do what the papers' sums say."""

from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Context, Message
from torch import Tensor, nn

from common.config import NodeConfig, Value
from specfed.local_grid import LocalGrid
from tests.federation import Federation, Handler, Run

# f_1 = (w - 1)^2 / 2 + 1 and f_2 = (w + 2)^2 + 1 as cross-entropies: two logits whose soft-plus they are.
START, RATE = 0.5, 0.1


class Quadratics(nn.Module):
    """One weight that matters, in float64. An input of 0 picks f_1, one of 1 picks f_2."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([[START], [0.0]], dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        w = self.weight[0, 0]
        both = torch.stack([(w - 1) ** 2 / 2, (w + 2) ** 2]) + 1
        gap = torch.log(torch.expm1(both[x.reshape(len(x)).long()]))
        return torch.stack([torch.zeros_like(gap), gap], dim=1)


def quadratics(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return Quadratics()


def two_clients(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Row 0 is client 1's, row 1 client 2's; row 2 is there for its class."""
    return np.array([[0.0], [1.0], [0.0]], np.float32), np.array([0, 0, 1])


# The table of four rounds with the participants {1, 2}, {1, 2}, {1}, {1, 2}; exact rationals, to 8 digits.
TABLE: dict[str, tuple[dict[str, Value], list[float]]] = {
    "fedavg": ({}, [0.09750000, -0.19431250, 0.03260688, -0.24136002]),
    "fedprox": ({"prox_mu": 0.5}, [0.10875000, -0.17784063, 0.04005989, -0.22815613]),
    "scaffold": ({}, [0.09750000, -0.20675000, -0.45303750, -0.60669172]),
    "feddyn": ({"dyn_alpha": 0.5}, [-0.28250000, -0.96960625, -1.00678601, -1.29320725]),
    "fedcm": ({"mix": 0.1}, [0.45547500, 0.37250266, 0.31068813, 0.21657933]),
    "fedsam": ({}, [0.09325000, -0.20164375, 0.03616856, -0.24302779]),
    "mofedsam": ({"mix": 0.1}, [0.45498250, 0.37109239, 0.30947906, 0.21509344]),
    "fedgamma": ({}, [0.09325000, -0.21442500, -0.46345325, -0.61886219]),
    "fedspeed": (
        {"speed_mu": 0.5, "duals": "participants"},
        [-0.29075000, -0.98514187, 0.04526777, -0.81283703],
    ),
    "feddc": ({"dc_alpha": 0.5}, [-0.28250000, -0.99379375, -1.56396945, -1.72648527]),
    "fedsmoo": ({"dyn_alpha": 0.5}, [-0.29075000, -0.98514187, -1.01250073, -1.30469938]),
    "fedlesam": ({}, [0.09750000, -0.20806250, 0.01196938, -0.26057220]),
    "fedvssam": ({"mix": 0.2}, [0.09325000, -0.29432075, -0.55200168, -0.78403616]),
}


def four_rounds(federation: Federation, **config: Value) -> tuple[Run, list[float]]:
    """A run of the table; the model after each round."""
    nodes = [
        NodeConfig(
            name=f"client-{i}",
            data="tests.contract.test_algorithms:two_clients",
            rows=str(rows_file(federation.tmp_path, i)),
            validation=0.0,
        ).as_dict()
        for i in (1, 2)
    ]

    grids: list[LocalGrid] = []

    def third_round_without_client_2(app: Handler) -> Handler:
        def handler(message: Message, context: Context) -> Message:
            reply = app(message, context)
            if message.metadata.message_type == "train":
                turn = (message.content.config_records["config"]["round"], context.node_config["name"])
                grids[0].online ^= {3} if turn in {(2, "client-2"), (3, "client-1")} else set()
            return reply

        return handler

    def known(grid: LocalGrid) -> LocalGrid:
        grids.append(grid)
        return grid

    defaults: dict[str, Value] = {
        "model": "tests.contract.test_algorithms:quadratics",
        "head": "weight",
        "rounds": 4,
        "local_epochs": 2,
        "batch_size": 1,
        "learning_rate": RATE,
        "weighting": "uniform",
        "filter": "none",
        "eval_data": "",
        "keep_checkpoints": 4,
        "min_nodes": 1,
    }
    run = federation.run(
        nodes=nodes, wrap=third_round_without_client_2, wrap_grid=known, **(defaults | config)
    )
    assert run.error is None
    return run, [weight_after(run, i) for i in range(1, 5)]


def rows_file(folder: Path, client: int) -> Path:
    file = folder / f"rows-{client}.npy"
    np.save(file, np.array([client - 1]))
    return file


def weight_after(run: Run, round_: int) -> float:
    from safetensors.numpy import load_file

    model = load_file(run.folder / "checkpoints" / f"round-{round_:04d}" / "model.safetensors")
    return float(model["weight"][0, 0])


@pytest.mark.parametrize("algorithm", TABLE)
def test_four_rounds_of_exact_rationals(federation: Federation, algorithm: str) -> None:
    more, expected = TABLE[algorithm]
    _, seen = four_rounds(federation, algorithm=algorithm, **more)
    assert seen == pytest.approx(expected, abs=5.1e-9)
