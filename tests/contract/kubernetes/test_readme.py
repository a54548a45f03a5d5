"""What the manifests' README tells fits the manifests."""

import re
import shlex

import pytest
import typer

from specfed.cli import app
from tests.contract.kubernetes.manifests import BASES, ROOT, kustomization, toml_of

README = (ROOT / "README.md").read_text()


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
