"""Whether the server or node in this container answers: ``python -m specfed.health``.

It asks by gRPC's health protocol at the address in SPECFED_HEALTH, where ``specfed server`` and
``specfed node`` listen. Imports little, since containers are asked every few seconds.
"""

import os
import sys

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

SECONDS = 8.0


def healthy(address: str) -> bool:
    """Whether a server or node says within eight seconds that it is serving."""
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        try:
            reply = HealthStub(channel).Check(HealthCheckRequest(), timeout=SECONDS)
        except grpc.RpcError:
            return False
    return bool(reply.status == HealthCheckResponse.SERVING)


def main() -> int:
    """0 if healthy, 1 if not, as Docker wants it."""
    address = os.environ.get("SPECFED_HEALTH", "")
    if not address:
        print("error: SPECFED_HEALTH names no address to ask", file=sys.stderr)
        return 1
    ok = healthy(address)
    print("serving" if ok else f"nothing serves at {address}")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
