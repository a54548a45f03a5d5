"""Services, probes and network policies: what listens where, and who reaches it."""

import pytest

from specfed.addresses import Address
from tests.contract.kubernetes.manifests import (
    BASES,
    FLEET,
    HEALTH,
    arguments,
    container_of,
    kustomization,
    of_kind,
)


def test_only_the_fleet_port_is_in_a_service() -> None:
    (service,) = of_kind("server", "Service")
    assert service["spec"]["ports"] == [{"name": "fleet", "port": FLEET, "targetPort": "fleet"}]
    assert not of_kind("node", "Service")
    ports = {role: {p["name"]: p["containerPort"] for p in container_of(role)["ports"]} for role in BASES}
    assert ports == {"server": {"fleet": FLEET, "health": HEALTH}, "node": {"health": HEALTH}}
    (deployment,) = of_kind("server", "Deployment")
    assert service["spec"]["selector"] == deployment["spec"]["template"]["metadata"]["labels"]


@pytest.mark.parametrize("role", BASES)
def test_probes_ask_where_health_is_answered(role: str) -> None:
    health = Address.parse(arguments(role)["health"])
    assert (health.host, health.port) == ("0.0.0.0", HEALTH)
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container_of(role)[probe]["grpc"] == {"port": HEALTH}


def test_network_policies_let_nodes_reach_the_server_and_nothing_else() -> None:
    labels = {
        role: of_kind(role, "Deployment")[0]["spec"]["template"]["metadata"]["labels"] for role in BASES
    }
    (server,), (node,) = of_kind("server", "NetworkPolicy"), of_kind("node", "NetworkPolicy")
    for role, policy in (("server", server), ("node", node)):
        assert policy["spec"]["podSelector"] == {"matchLabels": labels[role]}
        assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert labels["server"] != labels["node"]
    fleet = [{"protocol": "TCP", "port": FLEET}]
    nodes = {"namespaceSelector": {}, "podSelector": {"matchLabels": labels["node"]}}
    assert server["spec"]["ingress"] == [{"from": [nodes], "ports": fleet}]
    assert server["spec"]["egress"] == node["spec"]["ingress"] == []
    to_server, to_dns = node["spec"]["egress"]
    home = {"kubernetes.io/metadata.name": kustomization(BASES["server"])["namespace"]}
    peer = {"namespaceSelector": {"matchLabels": home}, "podSelector": {"matchLabels": labels["server"]}}
    assert to_server == {"to": [peer], "ports": fleet}
    assert to_dns["ports"] == [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]
    assert to_dns["to"] == [
        {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
            "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
        }
    ]
