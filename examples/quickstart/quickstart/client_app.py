"""The ClientApp: as in Flower's quickstarts, with nothing of specfed's."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from quickstart.task import Net, load_data, test, train

app = ClientApp()


def _data(context: Context):
    return load_data(int(context.node_config["partition-id"]), int(context.node_config["num-partitions"]))


@app.train()
def train_on_own_data(msg: Message, context: Context) -> Message:
    """Train the model that came; reply with the whole of it."""
    net = Net()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    data, _ = _data(context)
    # A seed of its own for each round: the example repeats exactly.
    torch.manual_seed(int(msg.content["config"]["server-round"]))
    loss = train(
        net, data, int(context.run_config["local-epochs"]), float(context.run_config["learning-rate"])
    )
    metrics = MetricRecord({"train-loss": loss, "num-examples": len(data[0])})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content, reply_to=msg)


@app.evaluate()
def test_on_own_data(msg: Message, context: Context) -> Message:
    """Test the model that came."""
    net = Net()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    _, data = _data(context)
    loss, accuracy = test(net, data)
    metrics = MetricRecord({"loss": loss, "accuracy": accuracy, "num-examples": len(data[0])})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)
