"""One federation, trained in three ways: in this process, by a plain PyTorch loop, by Flower's simulation.

20 clients with 500 rows each train an MLP 784-200-10 for 10 rounds: batches of 50, SGD with rate 0.05, plain
average, no filter. ``python -m benchmarks.federation WAY FOLDER EPOCHS`` does it once.
"""

import atexit
import gc
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import nn

from common import models
from common.checkpoint import load_arrays
from common.config import NodeConfig, RunConfig
from common.params import Arrays, Params, copy_of, to_arrays
from common.seeding import stream

CLIENTS, ROWS, ROUNDS, SHAPE, CLASSES = 20, 500, 10, (1, 28, 28), 10


def mlp(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """784-200-10."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, classes))


def make_data(folder: Path) -> None:
    """One ``.npz`` file a client: pictures of bytes, each class a noisy pattern of its own."""
    random = np.random.default_rng(0)
    patterns = random.integers(0, 128, (CLASSES, *SHAPE))
    for client in range(CLIENTS):
        y = random.integers(0, CLASSES, ROWS)
        x = patterns[y] + random.integers(0, 128, (ROWS, *SHAPE))
        np.savez(_file(folder, client), x=x.astype(np.uint8), y=y, classes=np.array(CLASSES))


def configuration(epochs: int) -> RunConfig:
    """The run, for as many local epochs."""
    return RunConfig(
        rounds=ROUNDS,
        model="benchmarks.federation:mlp",
        filter="none",
        local_epochs=epochs,
        batch_size=50,
        learning_rate=0.05,
        weighting="uniform",
        min_nodes=CLIENTS,
        device="cpu",
        threads=1,
        tensorboard=False,
    )


def node(folder: Path, client: int) -> NodeConfig:
    """One client's own configuration."""
    return NodeConfig(name=f"site-{client:02d}", data=str(_file(folder, client)), validation=0.0)


def in_process(folder: Path, epochs: int) -> Arrays:
    """The product's own apps on its in-process grid; the final model."""
    from client_app.app import app as client_app
    from server_app.app import app as server_app
    from specfed.local_grid import run_locally

    with _run_folder() as runs:
        run_locally(server_app, client_app, configuration(epochs), [node(folder, i) for i in range(CLIENTS)])
        return load_arrays(next(runs.glob("*/model.safetensors")))


def plain_loop(folder: Path, epochs: int) -> Arrays:
    """The same arithmetic with PyTorch and nothing around it; the final model."""
    config = configuration(epochs)
    torch.set_num_threads(1)
    data = [_tensors(_file(folder, client)) for client in range(CLIENTS)]
    model = models.build(config.model, SHAPE, CLASSES, config.seed)
    w = copy_of(dict(model.named_parameters()))
    for round_ in range(1, ROUNDS + 1):
        total = {name: torch.zeros_like(value) for name, value in w.items()}
        for client, (x, y) in enumerate(data):
            order = stream(config.seed, "batches", round_, node(folder, client).name)
            _train(model, w, x, y, config, order)
            for name, value in model.named_parameters():
                total[name] += value.detach() - w[name]
        w = {name: value + total[name] / CLIENTS for name, value in w.items()}
    return to_arrays(w)


def ray_simulation(folder: Path, epochs: int) -> Arrays:
    """The product's own apps in Flower's simulation, its clients in Ray actors; the final model."""
    from flwr.app import Context, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation

    values = configuration(epochs).as_dict()
    server, client = ServerApp(), ClientApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        from server_app.app import app

        app(grid=grid, context=Context(context.run_id, context.node_id, {}, RecordDict(), values))

    def handle(message: Message, context: Context) -> Message:
        from client_app.app import app

        mine = node(folder, int(context.node_config["partition-id"])).as_dict()
        return app(message, Context(context.run_id, context.node_id, mine, RecordDict(), values))

    client.train()(handle)
    client.query("hello")(handle)
    client.evaluate()(handle)
    with _run_folder() as runs:
        run_simulation(server, client, CLIENTS, backend_config={"client_resources": {"num_cpus": 1}})
        return load_arrays(next(runs.glob("*/model.safetensors")))


WAYS: dict[str, Callable[[Path, int], Arrays]] = {
    "in-process": in_process,
    "plain": plain_loop,
    "ray": ray_simulation,
}


def _train(
    model: nn.Module,
    w: Params,
    x: torch.Tensor,
    y: torch.Tensor,
    config: RunConfig,
    order: np.random.Generator,
) -> None:
    model.load_state_dict(w)
    optimizer = torch.optim.SGD(model.parameters(), lr=config.learning_rate)
    for _ in range(config.local_epochs):
        for rows in torch.split(torch.from_numpy(order.permutation(ROWS)), config.batch_size):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x[rows].float() * (4 / 255) - 2), y[rows])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()


def _tensors(file: Path) -> tuple[torch.Tensor, torch.Tensor]:
    with np.load(file, allow_pickle=False) as arrays:
        return torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"])


def _file(folder: Path, client: int) -> Path:
    return folder / f"{client:02d}.npz"


@contextmanager
def _run_folder() -> Iterator[Path]:
    logging.getLogger("flwr").setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory() as runs:
        os.environ["SPECFED_RUNS"] = runs
        yield Path(runs)


if __name__ == "__main__":
    atexit.register(gc.freeze)  # as ``specfed`` leaves
    WAYS[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))
