"""The manifests in docker/kubernetes, read from their kustomizations."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from specfed.deployment import ServerSettings

Object = dict[str, Any]

ROOT = Path(__file__).parents[3] / "docker" / "kubernetes"
BASES = {"server": ROOT / "base" / "server", "node": ROOT / "base" / "node"}
SITES = sorted((ROOT / "overlays" / "local").glob("site-*"))
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
