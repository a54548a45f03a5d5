"""Which node keys a running server accepts: Flower's registry of nodes, under the names that we use."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, UnregisterNodeRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.error import FlowerError
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, public_key_to_bytes

from common.errors import ConfigError, RunFailed, UnreachableError, nearest
from specfed.addresses import Address

REVOKED = "unregistered"  # Flower's word; it never forgets a key
_STATES = {"registered": "never seen", "online": "online", "offline": "offline", REVOKED: "revoked"}


@dataclass(frozen=True)
class Node:
    """A node as its server knows it."""

    id: int
    name: str  # empty for one that is not enrolled, on a server that takes such nodes
    state: str  # "never seen", "online", "offline", "revoked"; "gone" of one that was never enrolled
    last_seen: datetime | None
    key: ec.EllipticCurvePublicKey


def nodes(control: Address, ca: Path | None) -> list[Node]:
    """All nodes that a server has known, revoked ones included, by name.

    Raises UnreachableError if the server does not answer.
    """
    with _registry(control, ca) as registry:
        found = registry.ListNodes(ListNodesRequest()).nodes_info
    return sorted(
        (
            Node(
                info.node_id,
                info.name,
                # Flower strikes off a node without an enrolled key when it leaves.
                "gone" if info.status == REVOKED and not info.name else _STATES.get(info.status, info.status),
                _seen(info.status, info.last_deactivated_at),
                bytes_to_public_key(info.public_key),
            )
            for info in found
        ),
        key=lambda node: (node.name, node.id),
    )


def enroll(control: Address, ca: Path | None, name: str, key: ec.EllipticCurvePublicKey) -> None:
    """Let the node that holds ``key`` take part under ``name``.

    Raises ConfigError if the name or the key is taken, or the key was revoked; UnreachableError if the
    server does not answer.
    """
    for node in nodes(control, ca):
        same = node.key.public_numbers() == key.public_numbers()
        if same and node.state == "revoked":
            raise ConfigError(
                f"this key was revoked as {node.name or node.id}; "
                "the site needs a new one: 'specfed certs key' or 'issue --force'"
            )
        if same:
            raise ConfigError(f"this key is enrolled already, as {node.name or node.id}")
        if node.name == name and node.state != "revoked":
            raise ConfigError(f"another key is enrolled as {name}; revoke it first, or choose another --name")
    with _registry(control, ca) as registry:
        registry.RegisterNode(RegisterNodeRequest(public_key=public_key_to_bytes(key), name=name))


def revoke(control: Address, ca: Path | None, name: str) -> None:
    """Let the node called ``name`` take part no more; its key is of no use from then on.

    Raises ConfigError if no such node is enrolled, UnreachableError if the server does not answer.
    """
    enrolled = [node for node in nodes(control, ca) if node.state != "revoked"]
    found = [node for node in enrolled if node.name == name]
    if not found:
        hint = nearest(name, [node.name for node in enrolled]) or "'specfed nodes' lists them."
        raise ConfigError(f'no node is enrolled as "{name}". {hint}')
    with _registry(control, ca) as registry:
        for node in found:
            registry.UnregisterNode(UnregisterNodeRequest(node_id=node.id))


def _seen(status: str, left: str) -> datetime | None:
    if status == "online":
        return datetime.now(UTC)
    return datetime.fromisoformat(left) if left else None


@contextmanager
def _registry(control: Address, ca: Path | None) -> Iterator[ControlHttpClient]:
    client = ControlHttpClient.from_server_address(
        server_address=str(control),
        insecure=ca is None,
        root_certificates=None if ca is None else ca.read_bytes(),
        interceptors=[RuntimeVersionHttpInterceptor("specfed")],
    )
    try:
        yield client
    except httpx.HTTPStatusError as error:
        told = FlowerError.from_json(error.response.text)
        text = " ".join(str(told.message if told else error).split())
        raise RunFailed(f"the server at {control} refused: {text}") from None
    except httpx.HTTPError as error:
        raise UnreachableError(f"no server answers at {control}: {error}") from None
    finally:
        client.close()
