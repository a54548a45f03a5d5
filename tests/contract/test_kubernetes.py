"""Kubernetes manifests: valid, confined, and in step with what the product takes and listens at."""

import re
import shlex
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import typer
import yaml

from specfed.cli import app
from specfed.deployment import NodeSettings, ServerSettings, read_settings
from specfed.launcher import Address

Object = dict[str, Any]

ROOT = Path(__file__).parents[2] / "docker" / "kubernetes"
README = (ROOT / "README.md").read_text()
BASES = {"server": ROOT / "base" / "server", "node": ROOT / "base" / "node"}
SITES = sorted((ROOT / "overlays" / "local").glob("site-*"))
KUBERNETES = ("1.27", "1.37")  # the first with gRPC probes for good, and the newest that the schemas know
FLEET = ServerSettings.model_fields["port"].default
CONTROL = ServerSettings.model_fields["control_port"].default
HEALTH = 9093
USER = 10001  # the image's


@cache
def load(file: Path) -> list[Object]:
    return [document for document in yaml.safe_load_all(file.read_text()) if document]


def kustomization(folder: Path) -> Object:
    (one,) = load(folder / "kustomization.yaml")
    return one


FOLDERS = sorted(file.parent for file in ROOT.rglob("kustomization.yaml"))
RESOURCES = [
    (folder / name, document)
    for folder in FOLDERS
    for name in kustomization(folder)["resources"]
    if name.endswith(".yaml")
    for document in load(folder / name)
]
PATCHES = [
    (folder, entry, document)
    for folder in FOLDERS
    for entry in kustomization(folder).get("patches", [])
    for document in load(folder / entry["path"])
]


def objects(folder: Path) -> Iterator[Object]:
    """What a kustomization builds, before its own patches."""
    for name in kustomization(folder)["resources"]:
        if name.endswith(".yaml"):
            yield from load(folder / name)
        else:
            yield from objects(folder / name)


def of_kind(role: str, kind: str) -> list[Object]:
    return [one for one in objects(BASES[role]) if one["kind"] == kind]


def pod_of(role: str) -> Object:
    (deployment,) = of_kind(role, "Deployment")
    return deployment["spec"]["template"]["spec"]


def container_of(role: str) -> Object:
    (container,) = pod_of(role)["containers"]
    return container


def toml_of(folder: Path) -> Path:
    """The one file of the one ConfigMap that a kustomization makes, which the containers read."""
    (generator,) = kustomization(folder)["configMapGenerator"]
    (name,) = generator["files"]
    return folder / name


def arguments(role: str) -> dict[str, str]:
    command, *options = container_of(role)["args"]
    assert command == role
    return dict(option.removeprefix("--").split("=", 1) for option in options)


def mounted(role: str, path: str) -> str:
    """The kind of volume that a path of a container lies on."""
    (mount,) = [m for m in container_of(role)["volumeMounts"] if Path(path).is_relative_to(m["mountPath"])]
    (volume,) = [v for v in pod_of(role)["volumes"] if v["name"] == mount["name"]]
    (kind,) = volume.keys() - {"name"}
    return f"{kind}, read-only" if mount.get("readOnly") else kind


def strictly_valid(document: Object) -> None:
    for version in KUBERNETES:
        kubernetes_validate.validate(document, version, strict=True)


# --- form ----------------------------------------------------------------------------------------------


def test_kustomizations_name_every_file_and_none_that_is_not_there() -> None:
    known = {"apiVersion", "kind", "namespace", "resources", "configMapGenerator", "patches"}
    named = {ROOT / "README.md"}
    built_on: set[Path] = set()
    for folder in FOLDERS:
        one = kustomization(folder)
        assert one.keys() <= known, folder
        assert (one["apiVersion"], one["kind"]) == ("kustomize.config.k8s.io/v1beta1", "Kustomization")
        for name in one["resources"]:
            path = (folder / name).resolve()
            if path.is_dir():
                built_on.add(path)
            else:
                named.add(path)
        generated = [name for entry in one.get("configMapGenerator", []) for name in entry["files"]]
        patched = [entry["path"] for entry in one.get("patches", [])]
        named |= {folder / "kustomization.yaml", *(folder / name for name in [*generated, *patched])}
    assert named == {file for file in ROOT.rglob("*") if file.is_file()}
    assert set(FOLDERS) - built_on == {ROOT / "overlays" / "gpu"}


@pytest.mark.parametrize(
    ("file", "document"),
    RESOURCES,
    ids=[f"{d['kind']}-{f.parent.name}-{d['metadata']['name']}" for f, d in RESOURCES],
)
def test_resources_are_valid(file: Path, document: Object) -> None:
    strictly_valid(document)


def test_an_unknown_field_is_not_valid() -> None:
    (policy,) = deepcopy(of_kind("node", "NetworkPolicy"))
    policy["spec"]["egres"] = policy["spec"].pop("egress")
    with pytest.raises(kubernetes_validate.ValidationError, match="egres"):
        strictly_valid(policy)


def test_patches_change_what_is_there() -> None:
    assert len(PATCHES) == 3
    for folder, entry, patch in PATCHES:
        target = entry.get("target", {"kind": patch["kind"], "name": patch["metadata"]["name"]})
        found = [
            one
            for one in objects(folder)
            if (one["kind"], one["metadata"]["name"]) == (target["kind"], target["name"])
        ]
        assert found and {one["apiVersion"] for one in found} == {patch["apiVersion"]}
        if patch["kind"] != "Deployment":
            assert (
                patch.keys() == {"apiVersion", "kind", "metadata", "$patch"} and patch["$patch"] == "delete"
            )
            continue
        pod, base = patch["spec"]["template"]["spec"], found[0]["spec"]["template"]["spec"]
        assert pod.keys() <= {"containers", "volumes"}
        assert all(
            volume in [{"name": b["name"], "$patch": "delete"} for b in base["volumes"]]
            for volume in pod.get("volumes", [])
        )
        (container,), (old,) = pod["containers"], base["containers"]
        assert container["name"] == old["name"]
        assert container.keys() <= {"name", "image", "resources", "volumeMounts"}
        paths = [{"mountPath": mount["mountPath"], "$patch": "delete"} for mount in old["volumeMounts"]]
        assert all(mount in paths for mount in container.get("volumeMounts", []))


def test_gpu_overlay_gives_each_node_a_gpu_and_the_cuda_image() -> None:
    ((entry, patch),) = [(entry, patch) for folder, entry, patch in PATCHES if folder.name == "gpu"]
    assert entry["target"] == {"kind": "Deployment", "name": "node"}
    (change,) = patch["spec"]["template"]["spec"]["containers"]
    assert change["resources"] == {"limits": {"nvidia.com/gpu": "1"}}
    image = container_of("node")["image"]
    assert (image, change["image"]) == ("specfed", f"{image}:cuda")
    (deployment,) = deepcopy(of_kind("node", "Deployment"))
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    container["image"] = change["image"]
    container["resources"]["limits"] |= change["resources"]["limits"]
    strictly_valid(deployment)


def test_local_overlay_takes_the_data_volume_away_whole() -> None:
    changes = [patch for folder, _, patch in PATCHES if folder == ROOT / "overlays" / "local" / "node"]
    deployment, claim = sorted(changes, key=lambda patch: patch["kind"])
    pod = deployment["spec"]["template"]["spec"]
    assert pod["volumes"] == [{"name": "data", "$patch": "delete"}]
    assert pod["containers"][0]["volumeMounts"] == [{"mountPath": "/data", "$patch": "delete"}]
    assert (claim["kind"], claim["metadata"]["name"]) == ("PersistentVolumeClaim", "data")


# --- what a container may do -----------------------------------------------------------------------------


@pytest.mark.parametrize("role", BASES)
def test_pods_are_confined(role: str) -> None:
    pod, container = pod_of(role), container_of(role)
    assert pod.keys() == {
        "automountServiceAccountToken",
        "enableServiceLinks",
        "shareProcessNamespace",
        "securityContext",
        "containers",
        "volumes",
    }  # no host's network, processes or folders, no init or side containers
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert (
        container["resources"]["requests"].keys()
        == container["resources"]["limits"].keys()
        == {"cpu", "memory"}
    )


@pytest.mark.parametrize("role", BASES)
def test_image_runs_as_the_user_and_answers_at_the_port(role: str) -> None:
    image = (ROOT.parent / "Dockerfile").read_text()
    assert f"specfed:x:{USER}:{USER}:" in image and "USER specfed" in image
    assert f"SPECFED_HEALTH=127.0.0.1:{HEALTH}" in image
    assert 'ENTRYPOINT ["specfed"]' in image and "command" not in container_of(role)


@pytest.mark.parametrize("role", BASES)
def test_never_two_at_once_hold_a_state_or_key(role: str) -> None:
    (deployment,) = of_kind(role, "Deployment")
    assert (deployment["spec"]["replicas"], deployment["spec"]["strategy"]) == (1, {"type": "Recreate"})
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"] == {"matchLabels": labels}


@pytest.mark.parametrize("role", BASES)
def test_namespaces_let_only_confined_pods_in(role: str) -> None:
    (namespace,) = of_kind(role, "Namespace")
    assert namespace["metadata"]["labels"] == {"pod-security.kubernetes.io/enforce": "restricted"}
    assert namespace["metadata"]["name"] == kustomization(BASES[role])["namespace"]


@pytest.mark.parametrize(
    ("role", "volumes"),
    [
        (
            "server",
            {
                "/config": "configMap, read-only",
                "/certs": "secret, read-only",
                "/state": "persistentVolumeClaim",
                "/runs": "persistentVolumeClaim",
                "/tmp": "emptyDir",
            },
        ),
        (
            "node",
            {
                "/config": "configMap, read-only",
                "/certs": "secret, read-only",
                "/data": "persistentVolumeClaim, read-only",
                "/state": "persistentVolumeClaim",
                "/tmp": "emptyDir",
            },
        ),
    ],
)
def test_volumes_are_there_and_written_to_only_where_needed(role: str, volumes: dict[str, str]) -> None:
    assert {
        m["mountPath"]: mounted(role, m["mountPath"]) for m in container_of(role)["volumeMounts"]
    } == volumes
    by_kind = {kind: value for volume in pod_of(role)["volumes"] for kind, value in volume.items()}
    claims = {
        v["persistentVolumeClaim"]["claimName"]
        for v in pod_of(role)["volumes"]
        if "persistentVolumeClaim" in v
    }
    assert claims == {claim["metadata"]["name"] for claim in of_kind(role, "PersistentVolumeClaim")}
    (generator,) = kustomization(BASES[role])["configMapGenerator"]
    assert by_kind["configMap"] == {"name": generator["name"]}
    assert by_kind["secret"] == {"secretName": f"{role}-certs", "defaultMode": 0o400}
    assert by_kind["emptyDir"].keys() == {"sizeLimit"}


def test_no_secret_stands_in_a_file() -> None:
    for file in ROOT.rglob("*.*"):
        text = file.read_text()
        assert not re.search(r"-----BEGIN|secretGenerator|ecdsa-sha2|[A-Za-z0-9+/]{40,}", text), file
    assert "Secret" not in {document["kind"] for _, document in RESOURCES}


# --- ports -------------------------------------------------------------------------------------------------


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


# --- settings ------------------------------------------------------------------------------------------------


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


# --- what the README tells ---------------------------------------------------------------------------------


@pytest.mark.parametrize("role", BASES)
def test_readme_makes_the_secrets_that_pods_wait_for(role: str) -> None:
    words = shlex.split(README.replace("\\\n", " ").partition("```bash")[2].partition("```")[0])
    start = words.index(f"{role}-certs")
    assert words[start - 3 : start] == ["create", "secret", "generic"]
    made = set()
    for word in words[start + 1 :]:
        if not word.startswith("--from-file="):
            break
        made.add(word.removeprefix("--from-file=").partition("=")[0])
    text = toml_of(BASES[role]).read_text()
    assert made == set(re.findall(r'"/certs/([^"]+)"', text))


def test_readme_names_folders_and_commands_that_are_there() -> None:
    for folder in re.findall(r"-k (\S+)", README.replace("`", " ")):
        assert (ROOT.parents[1] / folder / "kustomization.yaml").is_file()
    for role in re.findall(r"exec (?:-i )?deploy/(\S+)", README):
        assert role in BASES
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert set(re.findall(r"specfed (\w+) --config /config/server.toml", README)) == {
        "enroll",
        "nodes",
        "run",
    }
    assert {"enroll", "nodes", "run"} <= set(commands)
    assert f"--host server.{kustomization(BASES['server'])['namespace']}.svc" in README
