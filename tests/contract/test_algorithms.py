"""Both halves of every algorithm, in the real apps: they meet, they train, and they do what the papers' sums say."""

from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Context, Message
from safetensors.numpy import load_file
from torch import Tensor, nn

from client_app.algorithms import ALGORITHMS
from common.checkpoint import load_latest
from common.config import NodeConfig, Value
from common.filters import FILTERS, low_bins
from common.messages import unpack
from common.params import nested
from specfed.local_grid import LocalGrid
from tests.federation import Federation, Handler, Run, on_train

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


def four_rounds(
    federation: Federation, run_id: str = "run", **config: Value
) -> tuple[Run, list[float], list[dict[str, float]]]:
    """A run of the table: the model after each round, and what the two nodes remember then."""
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
        run_id, nodes=nodes, wrap=third_round_without_client_2, wrap_grid=known, **(defaults | config)
    )
    assert run.error is None
    return run, [weight_after(run, i) for i in range(1, 5)], [memory_of(grids[0], i) for i in (2, 3)]


def memory_of(grid: LocalGrid, node_id: int) -> dict[str, float]:
    """What a node remembers of the last round, by slot."""
    records = grid.contexts[node_id].state.array_records
    latest = max(records, key=lambda name: int(name.rpartition("-")[2]), default=None)
    slots = nested(unpack(records[latest])) if latest else {}
    return {slot: float(arrays["weight"][0, 0]) for slot, arrays in slots.items()}


def rows_file(folder: Path, client: int) -> Path:
    file = folder / f"rows-{client}.npy"
    np.save(file, np.array([client - 1]))
    return file


def weight_after(run: Run, round_: int) -> float:
    model = load_file(run.folder / "checkpoints" / f"round-{round_:04d}" / "model.safetensors")
    return float(model["weight"][0, 0])


def shared_after(run: Run, population: int = 2) -> dict[str, float]:
    """The means over all nodes that the server's state stands for, after the last round."""
    slots = nested(load_latest(run.folder / "checkpoints").shared)
    return {slot: float(arrays["weight"][0, 0]) / population for slot, arrays in slots.items()}


@pytest.mark.parametrize("algorithm", TABLE)
def test_four_rounds_of_exact_rationals(federation: Federation, algorithm: str) -> None:
    more, expected = TABLE[algorithm]
    _, seen, _ = four_rounds(federation, algorithm=algorithm, **more)
    assert seen == pytest.approx(expected, abs=5.1e-9)


# What both sides hold after the fourth round: the server's mean, and client 1's and 2's own.
STATES: dict[str, tuple[dict[str, Value], str, str, float, tuple[float, float]]] = {
    "scaffold": ({}, "control", "control", 0.76827109, (-1.51278094, 3.04932312)),
    "feddyn": ({"dyn_alpha": 0.5}, "dual", "dual", 0.16456665, (-0.48322955, 0.81236284)),
    "feddc": (
        {"dc_alpha": 0.5},
        "drift",
        "drift",
        (-0.11300079 - 0.60708818) / 2,
        (-0.11300079, -0.60708818),
    ),
}


@pytest.mark.parametrize("algorithm", STATES)
def test_what_server_and_nodes_hold_after_four_rounds(federation: Federation, algorithm: str) -> None:
    more, shared, own, mean, (first, second) = STATES[algorithm]
    run, _, memories = four_rounds(federation, algorithm=algorithm, **more)
    assert shared_after(run)[shared] == pytest.approx(mean, abs=5.1e-9)
    assert [memory[own] for memory in memories] == pytest.approx([first, second], abs=5.1e-9)
    assert shared_after(run)[shared] == pytest.approx((memories[0][own] + memories[1][own]) / 2, abs=1e-15)


def test_directions_and_duals_after_four_rounds(federation: Federation) -> None:
    def after(**config: Value) -> tuple[dict[str, float], list[dict[str, float]]]:
        run, _, memories = four_rounds(federation, run_id=str(config), **config)
        return shared_after(run, population=1), memories

    assert after(algorithm="fedcm")[0]["direction"] == pytest.approx(0.47054401, abs=5.1e-9)
    assert after(algorithm="fedvssam", mix=0.2)[0]["direction"] == pytest.approx(1.16017238, abs=5.1e-9)
    shared, memories = after(algorithm="fedsmoo", dyn_alpha=0.5)
    assert shared["perturbation"] == pytest.approx(0.05, abs=1e-15)
    assert [m["ascent-dual"] for m in memories] == pytest.approx([-0.3, 0.4], abs=1e-14)
    shared, memories = after(algorithm="feddc", dc_alpha=0.5)
    assert shared["control"] / 2 == pytest.approx(-0.98764332, abs=5.1e-9)


def test_scaffold_with_the_full_gradient_by_hand(federation: Federation) -> None:
    # Round 1 is FedAvg's: c_1 = g_1(0.5) = -0.5, c_2 = g_2(0.5) = 5, c = 2.25. Round 2 from 0.0975:
    # client 1 steps by -(y - 1) - 2.75, client 2 by -2 (y + 2) + 2.75.
    _, seen, memories = four_rounds(federation, algorithm="scaffold", scaffold_option="I")
    first = 0.0975 - 0.1 * (0.0975 - 1 + 2.75)
    first -= 0.1 * (first - 1 + 2.75)
    second = 0.0975 - 0.1 * (2 * (0.0975 + 2) - 2.75)
    second -= 0.1 * (2 * (second + 2) - 2.75)
    assert seen[:2] == pytest.approx([0.0975, (first + second) / 2], abs=1e-12)
    assert memories[1]["control"] == pytest.approx(2 * (seen[2] + 2), abs=1e-12)  # at the last anchor


FILTER_KINDS = sorted(FILTERS)
WEIGHTINGS = ["uniform", "spectralfuse", "examples", "cgsv", "feddisco", "fedawa", "shapfed"]
PAIRS = [
    (algorithm, kind, WEIGHTINGS[(i + j) % len(WEIGHTINGS)])
    for i, algorithm in enumerate(ALGORITHMS)
    for j, kind in enumerate(FILTER_KINDS)
]


@pytest.mark.parametrize(("algorithm", "kind", "weighting"), PAIRS)
def test_every_algorithm_with_every_filter_and_a_weighting_of_each_kind(
    federation: Federation, algorithm: str, kind: str, weighting: str
) -> None:
    run = federation.run(
        nodes=federation.nodes(2),
        algorithm=algorithm,
        filter=kind,
        weighting=weighting,
        rounds=2,
        learning_rate=0.05,
        keep_checkpoints=2,
    )
    assert run.error is None and run.end.status == "completed"
    assert all(record.moved and record.loss is not None for record in run.rounds)
    assert sum(r.weight or 0.0 for r in run.clients() if r.round == 2) == pytest.approx(1)
    models = [load_file(run.folder / f"checkpoints/round-{i:04d}/model.safetensors") for i in (1, 2)]
    assert all(np.isfinite(x).all() for x in models[1].values())
    assert any((models[0][name] != x).any() for name, x in models[1].items())


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "ssf"] + ["ssf-spectral"])
def test_without_weight_decay_no_algorithm_moves_the_low_bins(federation: Federation, algorithm: str) -> None:
    run = federation.run(
        nodes=federation.nodes(2),
        algorithm=algorithm.removesuffix("-spectral"),
        ssf_projector="spectral",
        filter_ratio=0.3,
        local_epochs=2,
        rounds=3,
        learning_rate=0.05,
        keep_checkpoints=3,
    )
    models = [load_file(run.folder / f"checkpoints/round-{i:04d}/model.safetensors") for i in (1, 3)]
    filtered = 0
    for name, after in models[1].items():
        low = low_bins(0.3, after.size)
        first, last = (np.fft.rfft(m[name].ravel())[:low] for m in models)
        assert np.abs(last - first).max(initial=0) < 2e-5, name
        filtered += low > 0 and bool(np.abs(after - models[0][name]).max() > 1e-3)
    assert filtered >= 2


def test_what_the_filter_empties_need_not_be_sent(federation: Federation) -> None:
    sent: dict[str, int] = {}

    def count(name: str) -> object:
        def note(reply: Message, round_: int) -> Message:
            update = unpack(reply.content.array_records["update"])
            sent[name] = sum(x.size for x in update.values())
            return reply

        return on_train("site-1", note)

    keys: dict[str, Value] = {"filter_ratio": 0.3, "algorithm": "scaffold", "weighting": "spectralfuse"}
    full = federation.run("full", wrap=count("full"), **keys)  # type: ignore[arg-type]
    kept = federation.run("kept", wrap=count("kept"), uplink="kept-bins", **keys)  # type: ignore[arg-type]
    assert full.error is None and kept.error is None
    models = [load_file(run.folder / "model.safetensors") for run in (full, kept)]
    for name, x in models[0].items():
        np.testing.assert_allclose(models[1][name], x, atol=2e-6)
    # Of 288, 48, 192 and 4 elements at ratio 0.3: 43, 7 and 29 low bins go, two numbers each but for the mean.
    assert (sent["full"], sent["kept"]) == (532, 532 - (85 + 13 + 57))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_same_run_again_gives_the_same_bytes(federation: Federation, algorithm: str) -> None:
    keys: dict[str, Value] = {"algorithm": algorithm, "rounds": 2, "learning_rate": 0.05}
    first, again = (federation.run(name, nodes=federation.nodes(2), **keys) for name in ("first", "again"))
    assert first.model_bytes == again.model_bytes


@pytest.mark.parametrize("option", ["I", "II"])
def test_fedlesam_takes_either_option_of_scaffold(federation: Federation, option: str) -> None:
    run = federation.run(
        nodes=federation.nodes(2), algorithm="fedlesam", lesam_rule="scaffold", scaffold_option=option
    )
    assert run.error is None and run.end.status == "completed"


def test_scaffold_of_a_single_client_is_fedavg(federation: Federation) -> None:
    keys: dict[str, Value] = {"min_nodes": 1, "rounds": 3, "learning_rate": 0.1}
    models = [
        load_file(
            federation.run(name, nodes=federation.nodes(1), algorithm=name, **keys).folder
            / "model.safetensors"
        )
        for name in ("scaffold", "fedavg")
    ]
    for name, x in models[0].items():
        np.testing.assert_allclose(x, models[1][name], atol=1e-6)
