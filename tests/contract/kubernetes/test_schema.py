"""Manifests are valid, kustomizations name them all, and patches change what is there."""

from copy import deepcopy
from pathlib import Path

import kubernetes_validate
import pytest

from tests.contract.kubernetes.manifests import (
    FOLDERS,
    PATCHES,
    RESOURCES,
    ROOT,
    Object,
    container_of,
    kustomization,
    objects,
    of_kind,
)

KUBERNETES = ("1.27", "1.37")  # the first with gRPC probes for good, and the newest that the schemas know


def strictly_valid(document: Object) -> None:
    for version in KUBERNETES:
        kubernetes_validate.validate(document, version, strict=True)


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
