"""A node's own files and data, and the command on its machine."""

import os
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.errors import ConfigError, DataError
from specfed.addresses import Address
from specfed.certs import making, reading
from specfed.deployment import NodeSettings, read_settings
from specfed.doctor import node
from specfed.doctor.finding import Finding
from specfed.launcher import app_files
from tests.specfed.doctor.test_machine import closed

Serve = Callable[..., Address]


def settings(made: Path, **more: Any) -> NodeSettings:
    return read_settings(NodeSettings, made / "site-a" / "node.toml", {"data": "digits", **more})


def by_name(found: list[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in found}


# --- files -------------------------------------------------------------------------------------------


def test_the_files_of_a_bundle_are_well(made: Path) -> None:
    found = list(node.files(settings(made)))
    assert [(one.name, one.state) for one in found] == [
        ("CA", "ok"),
        ("key file", "ok"),
        ("own clock", "ok"),
    ]
    key = reading.read_public_key(made / "site-a" / "site-a.pub")
    assert reading.fingerprint(key) in found[1].text


def test_files_that_are_not_there_or_something_else(made: Path) -> None:
    (made / "site-a" / "ca.crt").unlink()
    (made / "site-a" / "site-a.key").write_text("no key")
    found = by_name(list(node.files(settings(made))))
    assert "cannot be read: No such file" in found["CA"].text and found["CA"].fix
    assert "is not an OpenSSH elliptic-curve key" in found["key file"].text
    assert found["CA"].error is found["key file"].error is ConfigError


def test_a_key_that_others_can_read_is_a_warning(made: Path) -> None:
    (made / "site-a" / "site-a.key").chmod(0o644)
    found = by_name(list(node.files(settings(made))))["key file"]
    assert found.state == "warning" and "chmod 600" in found.fix


@pytest.mark.parametrize(
    ("days_ago", "state", "words"),
    [(3651, "problem", "expired on"), (3640, "warning", "expires in"), (-1, "problem", "not valid before")],
)
def test_a_ca_and_its_dates(made: Path, days_ago: int, state: str, words: str) -> None:
    authority = making.new_authority(now=datetime.now(UTC) - timedelta(days=days_ago))
    (made / "site-a" / "ca.crt").write_bytes(making.certificate_pem(authority.certificate))
    found = by_name(list(node.files(settings(made))))["CA"]
    assert found.state == state and words in found.text and found.fix
    assert ("NTP" in found.fix) == (words == "not valid before")


def test_a_file_written_in_the_future_is_seen(made: Path) -> None:
    later = time.time() + 86_400
    os.utime(made / "site-a" / "site-a.key", (later, later))
    assert by_name(list(node.files(settings(made))))["own clock"].state == "warning"


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's use of pathspec
def test_a_policy_names_the_apps(made: Path, tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    assert "none" in node.policy(settings(made)).text
    file.write_text("max-rounds = 3\n")
    assert node.policy(settings(made, policy=str(file))).state == "ok"
    file.write_text(f'apps = ["{"0" * 64}"]\n')
    found = node.policy(settings(made, policy=str(file)))
    own = app_files.app_hash(app_files.stage_app(tmp_path / "app"))
    assert found.state == "warning" and own in found.text and "specfed app-hash" in found.fix
    file.write_text(f'apps = ["{own}"]\n')
    assert node.policy(settings(made, policy=str(file))).state == "ok"
    file.write_text("max-round = 3\n")
    found = node.policy(settings(made, policy=str(file)))
    assert found.error is ConfigError and 'Did you mean "max-rounds"?' in found.text


@pytest.mark.parametrize(
    ("text", "state", "said"),
    [
        ("noise = 20\nclip-norm = 1\nmax-rounds = 20\n", "ok", "a run's 20 rounds are (1.76, 1e-05)-diff"),
        (
            "noise = 1\nclip-norm = 9\n",
            "warning",
            "each round's update is (10, 1e-05)-differentially private",
        ),
        ("clip-norm = 1\n", None, ""),
        ("noise = 1\n", None, ""),  # an error, which the policy's own line tells
    ],
)
def test_what_a_policys_noise_comes_to(
    made: Path, tmp_path: Path, text: str, state: str | None, said: str
) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(text)
    found = list(node.privacy(settings(made, policy=str(file))))
    assert [one.state for one in found] == ([state] if state else [])
    assert all(said in one.text for one in found)
    assert not list(node.privacy(settings(made)))


def test_a_folder_that_executes_nothing_is_a_problem_where_apps_are_listed(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert node.programs(settings(made)).state == "ok"
    monkeypatch.setattr(Path, "chmod", lambda self, mode: None)
    assert node.programs(settings(made)).state == "warning"
    file = tmp_path / "policy.toml"
    file.write_text(f'apps = ["{"0" * 64}"]\n')
    found = node.programs(settings(made, policy=str(file)))
    assert found.error is ConfigError and "cannot be enforced" in found.text and "TMPDIR" in found.fix


def test_closed_folders_are_findings() -> None:
    with closed() as folder:
        places = {key: str(folder / key) for key in ("tls-ca", "key", "policy", "state", "data")}
        more = {"server": "127.0.0.1:1", "name": "site-a"}
        found = by_name(list(node.findings(read_settings(NodeSettings, None, {**places, **more}))))
    for name in ("CA", "key file", "policy", "state", "data", "server"):
        assert found[name].state == "problem" and "ermission denied" in found[name].text, found[name]


def test_a_cache_that_cannot_be_written_to_is_a_warning(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECFED_CACHE", str(made / "site-a" / "ca.crt"))
    found = by_name(list(node.findings(settings(made, server="127.0.0.1:1"))))["SPECFED_CACHE"]
    assert found.state == "warning" and found.error is None and "is a file, no folder" in found.text


# --- data --------------------------------------------------------------------------------------------


def looked_at(chosen: NodeSettings) -> Finding:
    """With time for a busy machine to import what splits data."""
    return node.data(chosen, seconds=200)


def saved(folder: Path, labels: list[int], **more: Any) -> str:
    file = folder / f"{len(list(folder.iterdir()))}.npz"
    np.savez(file, x=np.zeros((len(labels), 3), np.float32), y=np.array(labels), **more)
    return str(file)


def test_data_are_counted(made: Path, tmp_path: Path) -> None:
    assert looked_at(settings(made)).text == "1,437 examples of 10 of 10 classes"
    found = looked_at(settings(made, data=saved(tmp_path, [0, 2, 2]), part="1/1"))
    assert (found.state, found.text) == ("ok", "3 examples of 2 of 3 classes")


@pytest.mark.parametrize(
    ("data", "words"),
    [("nowhere.npz", "there is no such file"), ("/etc/passwd", "is a file of a kind that cannot be read")],
)
def test_data_that_cannot_be_read(made: Path, data: str, words: str) -> None:
    found = looked_at(settings(made, data=data))
    assert found.error is not None and found.error.exit_code == 3 and words in found.text and found.fix


def test_data_with_too_few_classes(made: Path, tmp_path: Path) -> None:
    found = looked_at(settings(made, data=saved(tmp_path, [0, 0, 0])))
    assert found.error is not None and found.error.exit_code == 3 and "have 1 class" in found.text
    found = looked_at(settings(made, data=saved(tmp_path, [1, 1, 1], classes=np.array(2))))
    assert found.state == "warning" and found.text.startswith("3 examples of 1 of 2 classes")


def test_a_part_that_is_none(made: Path, tmp_path: Path) -> None:
    found = looked_at(settings(made, data=saved(tmp_path, [0, 1]), part="3/3"))
    assert found.error is DataError and "can be split over 1 to 2 nodes; got 3" in found.text
    found = looked_at(settings(made, part="4/3"))
    assert found.error is ConfigError and "a part is written like" in found.text


def test_data_that_take_long_hold_nothing_up(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_data.py").write_text("import time\ndef load(split):\n    time.sleep(30)\n")
    monkeypatch.syspath_prepend(tmp_path)
    started = time.monotonic()
    found = node.data(settings(made, data="slow_data:load"), seconds=0.2)
    assert time.monotonic() - started < 10
    assert found.state == "warning" and "were not read within 0.2 s" in found.text


# --- the server --------------------------------------------------------------------------------------


def test_an_address_or_ca_that_cannot_be_used_is_not_dialled(made: Path) -> None:
    (found,) = node.server(settings(made, server="somewhere"))
    assert found.error is ConfigError and "takes HOST:PORT" in found.text
    (made / "site-a" / "ca.crt").write_text("nothing")
    (found,) = node.server(settings(made))
    assert "holds no certificate" in found.text


def test_a_grpc_server_that_is_not_flowers(made: Path, serve: Serve) -> None:
    found = list(
        node.server(settings(made, server=str(serve()), **{"tls-ca": "", "key": "", "insecure": True}))
    )
    assert found[-1].name == "Flower" and found[-1].error is not None and found[-1].error.exit_code == 5
    assert "not as Flower 1.39 does" in found[-1].text


def test_what_an_answer_to_a_key_means() -> None:
    server, file = Address("a.org", 9092), Path("certs/site-a.key")
    assert node.enrolment("enrolled", file, server, tls=True).state == "ok"
    unknown = node.enrolment("unknown", file, server, tls=True)
    assert unknown.error is not None and unknown.error.exit_code == 5
    assert "'specfed enroll site-a.pub'" in unknown.fix and "was revoked" in unknown.text
    assert node.enrolment("clock", file, server, tls=True).state == "warning"
    assert node.enrolment("unknown", None, server, tls=True).state == "warning"
    assert node.enrolment("unknown", None, server, tls=False).state == "ok"
