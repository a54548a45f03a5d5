"""What containers may do and write to, and that no secret stands in a file."""

import re

import pytest

from tests.contract.kubernetes.manifests import (
    BASES,
    HEALTH,
    RESOURCES,
    ROOT,
    USER,
    container_of,
    kustomization,
    mounted,
    of_kind,
    pod_of,
)


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
