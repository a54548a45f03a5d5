"""The ServerApp: FedAvg's place is taken by SpectralFuse."""

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from quickstart.task import Net
from strategies.drop_in import SpectralFuse

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and print who contributed what."""
    torch.manual_seed(0)
    nodes = int(context.run_config["min-nodes"])
    strategy = SpectralFuse(
        head="fc2.weight",
        buffers=["norm.running_*"],
        min_train_nodes=nodes,
        min_evaluate_nodes=nodes,
        min_available_nodes=nodes,
    )
    result = strategy.start(
        grid, ArrayRecord(Net().state_dict()), num_rounds=int(context.run_config["num-server-rounds"])
    )
    last = max(result.evaluate_metrics_clientapp)
    print(f"accuracy {result.evaluate_metrics_clientapp[last]['accuracy']:.3f}")
    for client, row in strategy.scores.items():
        print(f"{client}: {row.status}, weight {row.weight}")
