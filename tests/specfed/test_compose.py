"""The files for Docker Compose: what is committed, and what each container may see."""

from pathlib import Path

import pytest
import yaml

from common.errors import ConfigError
from specfed.compose import compose, gpu_overlay

DOCKER = Path(__file__).parents[2] / "docker"


def test_committed_files_are_what_the_command_writes() -> None:
    assert (DOCKER / "compose.yaml").read_text() == compose(3)
    assert (DOCKER / "compose.gpu.yaml").read_text() == gpu_overlay(3)


@pytest.mark.parametrize("nodes", [2, 3, 8])
def test_each_node_sees_its_own_key_and_nothing_else(nodes: int) -> None:
    file = yaml.safe_load(compose(nodes))
    services = file["services"]
    sites = [f"site-{number}" for number in range(1, nodes + 1)]
    assert set(services) == {"certs", "server", "enroll", "run", *sites}
    for number, site in enumerate(sites, start=1):
        assert services[site]["volumes"] == [f"{site}-certs:/certs:ro", f"{site}-state:/state"]
        assert services[site]["networks"] == ["federation"]
        assert f"--part={number}/{nodes}" in services[site]["command"]
    holders = [name for name, service in services.items() if any("ca:" in v for v in service["volumes"])]
    assert holders == ["certs"]
    used = {volume.split(":")[0] for service in services.values() for volume in service["volumes"]}
    assert used - {"${SPECFED_RUNS"} | {"runs"} == set(file["volumes"])
    assert services["run"]["entrypoint"][-1] == f"min-nodes={nodes}"


def test_every_container_is_confined() -> None:
    services = yaml.safe_load(compose(3))["services"]
    for name, service in services.items():
        assert service["read_only"] and service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert ("user" in service, "cap_add" in service) == ((name == "certs"),) * 2
        assert "ports" not in service and not service.get("privileged")
    assert services["certs"]["network_mode"] == "none"


def test_overlay_gives_each_node_a_gpu_of_its_own_or_the_one_that_a_variable_names() -> None:
    services = yaml.safe_load(gpu_overlay(4))["services"]
    assert list(services) == ["site-1", "site-2", "site-3", "site-4"]
    for number, service in enumerate(services.values(), start=1):
        (device,) = service["deploy"]["resources"]["reservations"]["devices"]
        assert device["capabilities"] == ["gpu"] and "count" not in device
        assert device["device_ids"] == [f"${{SPECFED_GPU_{number}:-{number - 1}}}"]


@pytest.mark.parametrize("write", [compose, gpu_overlay])
def test_one_node_is_no_federation(write: object) -> None:
    with pytest.raises(ConfigError, match="--nodes takes at least 2; got 1"):
        write(1)  # type: ignore[operator]
