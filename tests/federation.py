"""A small federation inside the test's process: real apps, real data, real files."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid
from torch import nn

from client_app.app import app as client_app
from common.config import NodeConfig, RunConfig, Value
from common.datasets import Examples
from common.ledger import ClientRecord, End, Header, Record, RoundRecord, read
from server_app.app import app as server_app
from server_app.folder import RUN_ID, RUNS
from specfed.local_grid import SERVER_ID, LocalGrid, own_identity

Handler = Callable[[Message, Context], Message]
DATA = "tests.federation:blobs"


def blobs(split: str) -> tuple[np.ndarray, np.ndarray]:
    """180 rows of four well-separated classes, 6 features each; the same in every process."""
    rng = np.random.default_rng(3 if split == "train" else 4)
    y = np.arange(180) % 4
    centres = 3 * np.eye(4, 6)
    return (centres[y] + rng.normal(size=(180, 6))).astype(np.float32), y.astype(np.int64)


def three_classes(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Blobs of the first three classes."""
    x, y = blobs(split)
    return x[y < 3], y[y < 3]


def named_1(split: str) -> Examples:
    """The blobs, whose classes have names."""
    x, y = blobs(split)
    return Examples(x, y, 4, ("ant", "bee", "cat", "dog"))


def named_2(split: str) -> Examples:
    """The same names but one, as a site without ants has them."""
    return replace(named_1(split), names=("bee", "cat", "dog", "elk"))


def small_net(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """48 hidden units, so that a weight has low bins."""
    return nn.Sequential(nn.Linear(input_shape[0], 48), nn.ReLU(), nn.Linear(48, classes))


def normed_net(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """A net with BatchNorm: float statistics and an integer counter."""
    return nn.Sequential(nn.Linear(input_shape[0], 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, classes))


def net_with_a_constant(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """A net with a buffer that holds no statistics and never travels, as tables of positions are."""
    net = small_net(input_shape, classes)
    net.register_buffer("positions", torch.arange(3.0), persistent=False)
    return net


def headless_net(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """A net whose last weight does not have a row a class."""
    return nn.Sequential(nn.Linear(input_shape[0], 5), nn.ReLU(), nn.Linear(5, 7))


def narrow_net(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """A net for inputs of another size."""
    return nn.Linear(input_shape[0] - 1, classes)


def headed_elsewhere(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """A net that gives more numbers than there are classes, though a weight in it has a row a class."""
    return nn.Sequential(nn.Linear(input_shape[0], classes), nn.Linear(classes, classes + 1))


class ViT(nn.Sequential):
    """By its name a vision transformer, but without a patch embedding that the filters know."""


def vit_net(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """A net that no filter fits unless told which tensors to take."""
    return ViT(nn.Linear(input_shape[0], classes))


class Federation:
    """Runs the apps on a LocalGrid and keeps what they left."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tmp_path, self._monkeypatch = tmp_path, monkeypatch
        monkeypatch.setenv(RUNS, str(tmp_path / "runs"))

    def node(self, name: str, rows: Iterable[int] | None = None, **more: Value) -> dict[str, Value]:
        """A node's configuration; ``rows`` of the blobs, or a third of them by the name's last digit."""
        if rows is None:
            first = int(name[-1]) - 1
            rows = range(first, 180, 3)
        file = self.tmp_path / f"{name}-{len(list(self.tmp_path.iterdir()))}.npy"
        np.save(file, np.array(list(rows)))
        return NodeConfig(name=name, data=DATA, rows=str(file)).as_dict() | more

    def nodes(self, count: int = 3) -> list[dict[str, Value]]:
        """``site-1`` to ``site-<count>`` with a third of the blobs each."""
        return [self.node(f"site-{i}") for i in range(1, count + 1)]

    def run(
        self,
        run_id: str = "run",
        nodes: list[dict[str, Value]] | None = None,
        wrap: Callable[[Handler], Handler] = lambda app: app,
        wrap_grid: Callable[[LocalGrid], Grid] = lambda grid: grid,
        **config: Value,
    ) -> "Run":
        """A run of 3 rounds on three nodes unless told otherwise; ``wrap`` tampers with the ClientApp."""
        defaults: dict[str, Value] = {
            "model": "tests.federation:small_net",
            "rounds": 3,
            "threads": 1,
            "learning_rate": 0.3,
            "eval_data": DATA,
            "tensorboard": False,
            "wait_timeout": 0.3,
        }
        values = RunConfig.read(
            {k.replace("_", "-"): v for k, v in (defaults | config).items()}, "the test"
        ).as_dict()
        self._monkeypatch.setenv(RUN_ID, run_id)
        grid = LocalGrid(wrap(client_app), self.nodes() if nodes is None else nodes, values)  # type: ignore[arg-type]
        error: Exception | None = None
        with own_identity():
            try:
                context = Context(SERVER_ID, SERVER_ID, {}, RecordDict(), values)
                server_app(grid=wrap_grid(grid), context=context)
            except Exception as caught:
                error = caught
        return Run(
            self.tmp_path / "runs" / (str(config.get("resume")) if "resume" in config else run_id), error
        )


class Run:
    """What a run left behind."""

    def __init__(self, folder: Path, error: Exception | None) -> None:
        self.folder, self.error = folder, error

    @property
    def records(self) -> list[Record]:
        return list(read(self.folder / "ledger.jsonl"))

    @property
    def header(self) -> Header:
        (header,) = [r for r in self.records if isinstance(r, Header)]
        return header

    @property
    def end(self) -> End:
        (end,) = [r for r in self.records if isinstance(r, End)]
        return end

    @property
    def rounds(self) -> list[RoundRecord]:
        return [r for r in self.records if isinstance(r, RoundRecord)]

    def clients(self, name: str | None = None) -> list[ClientRecord]:
        return [r for r in self.records if isinstance(r, ClientRecord) and name in (None, r.client)]

    @property
    def model_bytes(self) -> bytes:
        return (self.folder / "model.safetensors").read_bytes()


def on_train(
    client: str, change: Callable[[Message, int], Message | None], rounds: Iterable[int] = ()
) -> object:
    """A wrapper of the ClientApp that changes what ``client`` replies to train messages (in ``rounds``)."""
    chosen = set(rounds)

    def wrap(app: Handler) -> Handler:
        def handler(message: Message, context: Context) -> Message:
            reply = app(message, context)
            if message.metadata.message_type != "train" or context.node_config["name"] != client:
                return reply
            number = int(message.content.config_records["config"]["round"])  # type: ignore[arg-type]
            if chosen and number not in chosen:
                return reply
            return change(reply, number)  # type: ignore[return-value]

        return handler

    return wrap
