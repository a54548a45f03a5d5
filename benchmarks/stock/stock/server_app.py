"""The ServerApp: Flower's own FedAvg. After each round it prints when that was and what the nodes took."""

import json
import time

from flwr.app import ArrayRecord, Context, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from stock.task import net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train on all nodes, and evaluate on all of them if the run says so."""
    nodes = int(context.run_config["nodes"])
    slowest: list[float] = []  # seconds of the slowest node, one number for each phase of the round

    def slowest_node(replies: list[RecordDict], _weighted_by: str) -> MetricRecord:
        slowest.append(max(float(reply["metrics"]["seconds"]) for reply in replies))
        return MetricRecord({"seconds": slowest[-1]})

    def tell(round_: int, _arrays: ArrayRecord) -> None:
        line = {"round": round_, "at": time.monotonic(), "node-seconds": sum(slowest)}
        print("timed " + json.dumps(line), flush=True)
        slowest.clear()

    strategy = FedAvg(
        fraction_evaluate=1.0 if context.run_config["evaluate"] else 0.0,
        min_train_nodes=nodes,
        min_evaluate_nodes=nodes,
        min_available_nodes=nodes,
        train_metrics_aggr_fn=slowest_node,
        evaluate_metrics_aggr_fn=slowest_node,
    )
    strategy.start(
        grid, ArrayRecord(net().state_dict()), num_rounds=int(context.run_config["rounds"]), evaluate_fn=tell
    )
