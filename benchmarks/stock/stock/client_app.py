"""The ClientApp, as in Flower's quickstarts. Its replies say how many seconds its own work took."""

import time

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch.nn import functional as F

from stock.task import load_data, net

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """One epoch of SGD with batches of 32; replies with the model."""
    started = time.monotonic()
    model, (x, y), _ = _received(message, context)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for rows in torch.randperm(len(x)).split(32):
        optimizer.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    metrics = MetricRecord({"num-examples": len(x), "seconds": time.monotonic() - started})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Loss on the node's own test rows."""
    started = time.monotonic()
    model, _, (x, y) = _received(message, context)
    with torch.no_grad():
        loss = F.cross_entropy(model(x), y).item()
    metrics = MetricRecord({"num-examples": len(x), "loss": loss, "seconds": time.monotonic() - started})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def _received(message: Message, context: Context):  # type: ignore[no-untyped-def]
    torch.set_num_threads(1)
    model = net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())  # type: ignore[union-attr]
    node = context.node_config
    train_rows, test_rows = load_data(int(node["partition-id"]), int(node["num-partitions"]))
    return model, train_rows, test_rows
