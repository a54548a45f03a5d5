"""The in-process runner: what it keeps in memory between messages changes no bit of the result."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from client_app.app import app as client_app
from common.config import NodeConfig, RunConfig
from common.errors import ConfigError
from common.ledger import End
from server_app.app import app as server_app
from server_app.folder import RUN_ID, RUNS
from specfed import lab
from specfed.local_grid import run_locally
from specfed.watch import exit_code
from tests.federation import Federation, blobs


def test_what_is_kept_between_messages_changes_no_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed = Federation(tmp_path, monkeypatch)
    x, y = blobs("train")
    files = []
    for i in range(3):
        files.append(tmp_path / f"{i}.npz")
        np.savez(files[-1], x=x[i::3], y=y[i::3])
    nodes = [NodeConfig(name=f"site-{i}", data=str(file), validation=0.2) for i, file in enumerate(files)]
    keys = {"model": "tests.federation:normed_net", "rounds": 3, "threads": 1, "tensorboard": False}

    plain = fed.run("plain", [node.as_dict() for node in nodes], eval_data="", **keys)
    assert plain.error is None
    monkeypatch.setenv(RUN_ID, "kept")
    monkeypatch.setenv(RUNS, str(tmp_path / "runs"))
    config = RunConfig.read({**plain.header.config, "eval-data": ""}, "the test")
    run_locally(server_app, client_app, config, nodes)
    assert (tmp_path / "runs" / "kept" / "model.safetensors").read_bytes() == plain.model_bytes


def test_a_run_imports_nothing_that_it_does_not_use(tmp_path: Path) -> None:
    """Each of these takes from a tenth of a second to two."""
    x, y = blobs("train")
    np.savez(tmp_path / "data.npz", x=x, y=y)
    script = """
import sys
from client_app.app import app as client_app
from common.config import NodeConfig, RunConfig
from server_app.app import app as server_app
from specfed import lab
from specfed.local_grid import run_locally
from specfed.watch import exit_code

nodes = [NodeConfig(name=name, data="data.npz") for name in ("site-a", "site-b", "site-c")]
keys = {"model": "mlp4", "rounds": 2, "min_nodes": 3, "threads": 1, "tensorboard": False}
run_locally(server_app, client_app, RunConfig(weighting="uniform", **keys), nodes)
heavy = {"datasets", "flwr_datasets", "matplotlib", "pandas", "scipy", "sklearn", "tensorboard", "torchvision"}
print(sorted((heavy | {"torch._dynamo", "torch._inductor"}) & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


@pytest.mark.parametrize(
    ("keys", "says"),
    [({"resume": "nowhere"}, 'no run "nowhere" to resume'), ({"device": "cuda:99"}, "cuda:99")],
)
def test_a_run_that_is_refused_before_it_has_books_ends_with_a_line_all_the_same(
    keys: dict[str, str], says: str, tmp_path: Path
) -> None:
    """Whoever watches it from afar learns the reason, and with the error's class the exit code."""
    records = []
    with pytest.raises(ConfigError, match=says):
        for record in lab.run(RunConfig(tensorboard=False, **keys), [], tmp_path):
            records.append(record)
    (end,) = records
    assert isinstance(end, End)
    assert (end.status, end.error, end.rounds) == ("failed", "ConfigError", 0) and says in end.reason
    assert exit_code(end, str) == 2
