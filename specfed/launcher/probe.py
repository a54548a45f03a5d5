"""What a server's Fleet API says to a node's key, without the node taking part.

Flower checks the signed time of a request first, then looks the key up, and only then reads the request.
So a request that cannot be granted tells about clock and key, and leaves the server as it is.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import grpc
from flwr.common.constant import (
    PUBLIC_KEY_HEADER,
    SIGNATURE_HEADER,
    SYSTEM_TIME_TOLERANCE,
    TIMESTAMP_HEADER,
    TIMESTAMP_TOLERANCE,
)
from flwr.proto.fleet_pb2 import ActivateNodeRequest
from flwr.proto.fleet_pb2_grpc import FleetStub
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

from specfed.addresses import Address
from specfed.certs.reading import Key
from specfed.dial import DIAL_SECONDS

# A server takes a signed time that is less than EARLY seconds ahead of its own and less than LATE behind.
EARLY, LATE = float(SYSTEM_TIME_TOLERANCE), float(TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE)

Answer = Literal["enrolled", "unknown", "clock", "strange"]
_NO_HEARTBEAT = 0.0  # out of Flower's bounds: refused, but only once the key has been found
_CODES: dict[int, Answer] = {
    ApiErrorCode.FLEET_INVALID_HEARTBEAT_INTERVAL: "enrolled",
    ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED: "unknown",
}


@contextmanager
def fleet(address: Address, ca: bytes | None) -> Iterator[Any]:
    """A gRPC channel to ``address``, encrypted if the CA's certificate is given; closed at the exit."""
    target = str(address)
    credentials = None if ca is None else grpc.ssl_channel_credentials(ca)
    channel = grpc.secure_channel(target, credentials) if credentials else grpc.insecure_channel(target)
    try:
        yield channel
    finally:
        channel.close()


def speaks_grpc(channel: Any) -> bool:
    """Whether there is a gRPC server at the other end of a channel."""
    try:
        grpc.channel_ready_future(channel).result(DIAL_SECONDS)
    except grpc.FutureTimeoutError:
        return False
    return True


def ask(channel: Any, key: Key, shift: float = 0.0) -> Answer:
    """What the server thinks of ``key``, with a request signed ``shift`` seconds from now.

    "clock": it does not take that time. "unknown": the key is not enrolled, or was revoked. "strange": it
    answered something else or nothing.
    """
    return _meaning(refusal(channel, key, shift))


def refusal(channel: Any, key: Key, shift: float = 0.0, *more: tuple[str, str]) -> str:
    """The server's words to such a request with ``more`` metadata; empty if it granted what it cannot."""
    stamp = (datetime.now(UTC) + timedelta(seconds=shift)).isoformat()
    public = public_key_to_bytes(key.public_key())
    metadata = (
        (PUBLIC_KEY_HEADER, public),
        (TIMESTAMP_HEADER, stamp),
        (SIGNATURE_HEADER, sign_message(key, stamp.encode("ascii"))),
        *more,
    )
    request = ActivateNodeRequest(public_key=public, heartbeat_interval=_NO_HEARTBEAT)
    try:
        FleetStub(channel).ActivateNode(request, metadata=metadata, timeout=DIAL_SECONDS)
    except grpc.RpcError as error:
        return error.details() or ""
    return ""


def _meaning(details: str) -> Answer:
    if details == "Invalid timestamp":
        return "clock"
    told = FlowerError.from_json(details)
    return _CODES.get(told.code, "strange") if told else "strange"
