"""The configuration files and options that containers get are ones that the product takes."""

from pathlib import Path

import pytest
import typer

from specfed.cli import app
from specfed.deployment import NodeSettings, ServerSettings, read_settings
from tests.contract.kubernetes.manifests import (
    BASES,
    CONTROL,
    FLEET,
    ROOT,
    SITES,
    arguments,
    container_of,
    kustomization,
    mounted,
    of_kind,
    toml_of,
)


@pytest.mark.parametrize("role", BASES)
def test_the_command_line_has_the_options_that_containers_give(role: str) -> None:
    command = typer.main.get_command(app).commands[role]  # type: ignore[attr-defined]
    known = {option for parameter in command.params for option in parameter.opts}
    assert {f"--{option}" for option in arguments(role)} <= known
    assert arguments(role)["config"] == f"/config/{toml_of(BASES[role]).name}"


def test_the_server_takes_its_settings(tmp_path: Path) -> None:
    file = tmp_path / "server.toml"
    file.write_text(toml_of(BASES["server"]).read_text())
    settings = read_settings(ServerSettings, file, {"health": arguments("server")["health"]})
    assert (settings.port, settings.control_port) == (FLEET, CONTROL)
    assert settings.control_host == "127.0.0.1" and settings.enrolled_only
    for path in (settings.tls_ca, settings.tls_cert, settings.tls_key):
        assert mounted("server", path) == "secret, read-only"
    for path in (settings.state, settings.runs):
        assert mounted("server", path) == "persistentVolumeClaim"


@pytest.mark.parametrize("folder", [BASES["node"], *SITES], ids=lambda folder: folder.name)
def test_nodes_take_their_settings(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text(toml_of(folder).read_text())
    settings = read_settings(NodeSettings, file, {"health": arguments("node")["health"]})
    home = kustomization(BASES["server"])["namespace"]
    (service,) = of_kind("server", "Service")
    assert settings.server == f"{service['metadata']['name']}.{home}.svc:{FLEET}"
    assert settings.name == kustomization(folder)["namespace"]
    assert str(settings.threads) == container_of("node")["resources"]["limits"]["cpu"]
    assert mounted("node", settings.state) == "persistentVolumeClaim"
    assert not settings.insecure
    for path in (settings.tls_ca, settings.key):
        assert mounted("node", path) == "secret, read-only"
    (generator,) = kustomization(folder)["configMapGenerator"]
    assert generator["name"] == "node"
    if folder in SITES:
        assert generator["behavior"] == "replace"
        assert (settings.data, settings.part) == ("digits", f"{SITES.index(folder) + 1}/{len(SITES)}")
    else:
        assert mounted("node", settings.data) == "persistentVolumeClaim, read-only"


def test_the_local_overlay_has_all_sites() -> None:
    named = kustomization(ROOT / "overlays" / "local")["resources"]
    assert named == ["../../base/server", *(site.name for site in SITES)] and len(SITES) == 3
