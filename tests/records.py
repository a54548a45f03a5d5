"""Cards of nodes and of a model, as ledgers hold them."""

from common.ledger import ModelCard, NodeCard

MODEL = ModelCard(
    name="cnn5", parameters=61234, tensors=10, filtered_tensors=6, head="fc2.weight", head_shape=(10, 64)
)


def node(name: str, examples: int = 100) -> NodeCard:
    return NodeCard(
        name=name,
        examples=examples,
        classes=10,
        input_shape=(1, 8, 8),
        fingerprint="sha256:0123456789abcdef",
        device="cpu",
        versions={"torch": "2.14.1"},
    )
