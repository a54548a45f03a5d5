"""``specfed demo``: a whole federation on this machine."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from common.config import RunConfig, Value
from common.errors import ConfigError
from common.ledger import LEDGER
from specfed import __version__
from specfed.commands.options import Alpha, Data, FreeRider, Nodes, Overrides, Partition, Runs, run_folder
from specfed.commands.terminal import dealt, near
from specfed.settings import checked, parse_overrides

if TYPE_CHECKING:
    from specfed.cluster import Federation


def demo(
    overrides: Overrides = None,
    data: Data = "digits",
    model: Annotated[str, typer.Option(help="Model to train.")] = "cnn5",
    nodes: Nodes = 5,
    rounds: Annotated[int, typer.Option(help="Rounds of training.")] = 10,
    partition: Partition = "dirichlet",
    alpha: Alpha = 0.3,
    weighting: Annotated[str, typer.Option(help="How updates are weighed.")] = "spectralfuse",
    filter: Annotated[str, typer.Option(help="Filter on local gradients.")] = "fft",
    seed: Annotated[int, typer.Option(help="Of the split and of the training.")] = 0,
    with_free_rider: FreeRider = True,
    threads: Annotated[int, typer.Option(help="CPU threads of a training process.")] = 1,
    runs: Runs = Path("runs"),
) -> None:
    """A whole federation on this machine: server and nodes as real processes, with a report."""
    from specfed import cluster
    from specfed.launcher import children

    chosen: dict[str, Value] = {
        "run-name": "demo",
        "model": model,
        "rounds": rounds,
        "weighting": weighting,
        "filter": filter,
        "seed": seed,
        "threads": threads,
        "eval-data": data,
        "min-nodes": max(1, nodes),
        "min-replies": max(1, nodes // 2),
        **parse_overrides(overrides or ()),
    }
    config = checked(chosen, {})
    if config.resume:
        raise ConfigError(
            "specfed demo begins a new run each time; 'specfed lab run' takes resume, with the same options"
        )
    with cluster.scratch() as folder:
        shares = cluster.deal(data, nodes, partition, alpha, config.seed, with_free_rider, folder / "rows")
        cluster.require_nodes(config, shares)
        cluster.try_model(config, shares)
        made = run_folder(runs.resolve(), config.run_name)
        threading = {"OMP_NUM_THREADS": str(config.threads)} if config.threads else {}
        common = children.python_path() | threading
        place = {"SPECFED_RUNS": str(made.parent), "SPECFED_RUN_ID": made.name}
        try:
            with cluster.federation(shares.nodes, folder, place | common, common) as fed:
                print(
                    f"specfed {__version__} · demo · 1 server + {nodes} nodes on this machine, "
                    f"gRPC on {fed.server.fleet}, {near(made)}"
                )
                print(dealt(data, shares), flush=True)
                code = _train(fed, config, made, shares.free_rider)
        finally:
            if made.is_dir():
                shutil.copytree(folder / "logs", made / "logs", dirs_exist_ok=True)
    raise typer.Exit(code)


def _train(fed: "Federation", config: RunConfig, run_folder: Path, free_rider: str) -> int:
    from specfed.live import follow, scores
    from specfed.watch import exit_code, show

    run = fed.submit(config.as_dict())
    fed.wait_online()
    end = show(follow(run_folder / LEDGER, run.finished))
    code = exit_code(end, run.details)
    suspects = {suspect.client for suspect in end.suspects} if end else set()
    if code == 0 and free_rider and free_rider not in suspects and scores(config.as_dict()):
        print(
            f"{'':<15}{free_rider}, the free-rider, is not told by its updates here: few samples train, too"
        )
    return code
