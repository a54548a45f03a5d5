"""``specfed certs``: what it makes, and that it replaces nothing unasked."""

import shlex
from pathlib import Path

import pytest

from common.errors import ConfigError, UnreachableError
from specfed import deployment
from specfed.certs import reading
from specfed.commands import certificates
from specfed.deployment import NodeSettings, read_settings
from tests.commands import in_this_process
from tests.specfed.certificates import other, replace


def test_renewing_needs_this_cas_key_and_its_passphrase(made: Path, tmp_path: Path) -> None:
    before = (made / "server" / "server.crt").read_bytes()
    with pytest.raises(ConfigError, match=r"ca\.crt is not from this CA"):
        certificates.renew(made, ca=other(made).parent / "ca")
    secret, wrong = tmp_path / "secret", tmp_path / "wrong"
    secret.write_text("correct horse\n")
    wrong.write_text("battery staple\n")
    closed = tmp_path / "closed"
    certificates.init(["a.org"], closed, passphrase_file=secret)
    for file, sentence in ((wrong, "the passphrase is wrong"), (None, "needs its passphrase")):
        with pytest.raises(ConfigError, match=sentence):
            certificates.renew(closed, passphrase_file=file)
    certificates.renew(closed, host=["b.org"], passphrase_file=secret)
    assert reading.hosts_of(reading.read_certificates(closed / "server" / "server.crt")[0])[0] == "b.org"
    assert (made / "server" / "server.crt").read_bytes() == before
    wrong.write_text("")
    with pytest.raises(ConfigError, match="is empty; it takes the passphrase in its first line"):
        certificates.init(["a.org"], tmp_path / "third", passphrase_file=wrong)
    assert not (tmp_path / "third").exists()


def test_init_and_issue_never_overwrite_unasked(made: Path) -> None:
    before = {path: path.read_bytes() for path in made.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match="--force replaces it"):
        certificates.init(["a.org"], made)
    with pytest.raises(ConfigError, match="--force replaces it"):
        certificates.issue(["site-b", "site-a"], made)
    assert {path: path.read_bytes() for path in made.rglob("*") if path.is_file()} == before
    replace(made / "server" / "server.toml", "control-port = 8000", "control-port = 8001")
    certificates.init(["a.org"], made, force=True)
    assert "8001" in (made / "server" / "server.toml").read_text()  # an operator's settings stay
    replace(made / "site-a" / "node.toml", '# policy = "policy.toml"', 'policy = "policy.toml"')
    certificates.issue(["site-a"], made, force=True)
    assert '\npolicy = "policy.toml"' in (made / "site-a" / "node.toml").read_text()
    assert (made / "site-a" / "site-a.key").read_bytes() != before[made / "site-a" / "site-a.key"]
    certificates.issue(["site-a"], made, server="b.org:9092", force=True)
    assert 'server = "b.org:9092"' in (made / "site-a" / "node.toml").read_text()
    assert (made / "ca" / "ca.key").read_bytes() != before[made / "ca" / "ca.key"]


@pytest.mark.parametrize("name", ["", "a b", "../x", "ca", "server", ".hidden", "a" * 61])
def test_what_is_no_sites_name(made: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="is not a site's name"):
        certificates.issue([name], made)
    with pytest.raises(ConfigError, match="is not a site's name"):
        certificates.key(name, made / "x")


def test_a_site_can_make_its_own_key(made: Path, tmp_path: Path) -> None:
    certificates.key("site-b", tmp_path / "site")
    certificates.issue(
        ["site-b"], made, server="other.example.org:1234", public_key=tmp_path / "site" / "site-b.pub"
    )
    bundle = made / "site-b"
    assert sorted(path.name for path in bundle.iterdir()) == ["ca.crt", "node.toml", "site-b.pub"]
    assert (bundle / "site-b.pub").read_bytes() == (tmp_path / "site" / "site-b.pub").read_bytes()
    (tmp_path / "site" / "site-b.key").rename(bundle / "site-b.key")
    node = read_settings(NodeSettings, bundle / "node.toml", {"data": "digits"})
    assert node.server == "other.example.org:1234"
    assert deployment.node_identity(node)[0].key == bundle / "site-b.key"


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("port = 9092", 'port = "x"', '"port" in .*, line 3'),
        ("port = 9092", "port = 0", '"port" in .*, line 3'),
    ],
)
def test_the_servers_settings_are_checked_before_a_site_is_told_of_them(
    made: Path, old: str, new: str, sentence: str
) -> None:
    replace(made / "server" / "server.toml", f"\n{old}", f"\n{new}")
    with pytest.raises(ConfigError, match=sentence):
        certificates.issue(["site-b"], made)
    assert not (made / "site-b").exists()


def test_a_site_dials_no_wildcard(tmp_path: Path) -> None:
    certificates.init(["*.example.org", "fl.example.org"], tmp_path / "both")
    certificates.issue(["site-a"], tmp_path / "both")
    assert 'server = "fl.example.org:9092"' in (tmp_path / "both" / "site-a" / "node.toml").read_text()
    certificates.init(["*.example.org"], tmp_path / "one")
    with pytest.raises(ConfigError, match="names no host that a site can dial; give --server HOST:PORT"):
        certificates.issue(["site-a"], tmp_path / "one")
    certificates.issue(["site-a"], tmp_path / "one", server="fl.example.org:9092")
    certificates.init(["localhost"], tmp_path / "here")
    certificates.issue(["site-a"], tmp_path / "here")
    assert 'server = "localhost:9092"' in (tmp_path / "here" / "site-a" / "node.toml").read_text()


def test_the_command_that_enrols_can_be_pasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with in_this_process(tmp_path, monkeypatch) as command:
        assert command("certs", "init", "--host", "localhost", "--out", "my certs") == 0
        capsys.readouterr()
        assert command("certs", "issue", "site-a", "--out", "my certs") == 0
        _, pasted = capsys.readouterr().out.splitlines()
        assert command(*shlex.split(pasted)[1:]) == UnreachableError.exit_code  # as no server runs
    assert "no server answers at 127.0.0.1:8000" in capsys.readouterr().err


def test_a_passphrase_that_openssl_does_not_take(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x" * 1024)
    with pytest.raises(ConfigError, match="takes at most 1,023 bytes; got 1,024"):
        certificates.init(["a.org"], tmp_path / "certs", passphrase_file=tmp_path / "secret")
