"""Configuration files of servers and nodes, and what is found before a start. No process is started here."""

import fcntl
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from common.errors import ConfigError, SpecfedError
from specfed import deployment
from specfed.certs import making, reading, writing
from specfed.commands import certificates
from specfed.deployment import NodeSettings, ServerSettings, read_settings
from tests.specfed.certificates import other, replace


def test_the_files_that_certs_makes_are_ready(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(made.parent)
    server = read_settings(ServerSettings, Path("certs/server/server.toml"), {})
    assert (server.fleet.port, server.control.port, server.enrolled_only) == (9092, 8000, True)
    assert server.state == str(made / "server" / "state")  # from the file's folder
    assert server.runs == "runs"  # not in the file: from here
    tls, warnings = deployment.server_tls(server)
    assert tls is not None and tls.key == made / "server" / "server.key" and warnings == []

    node = read_settings(NodeSettings, Path("certs/site-a/node.toml"), {"data": "digits"})
    assert (node.server, node.name) == ("fl.example.org:9092", "site-a")
    identity, warnings = deployment.node_identity(node)
    assert identity == deployment.Identity(made / "site-a" / "ca.crt", made / "site-a" / "site-a.key")
    assert warnings == []


def test_an_rsa_certificate_from_elsewhere_is_as_good(made: Path, tmp_path: Path) -> None:
    """Made with cryptography alone, as another CA would."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key, name = rsa.generate_private_key(65537, 2048), x509.Name.from_rfc4514_string("CN=elsewhere")
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, now - timedelta(1), now + timedelta(90))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    (tmp_path / "crt").write_bytes(making.certificate_pem(certificate))
    form = serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    (tmp_path / "key").write_bytes(key.private_bytes(serialization.Encoding.PEM, *form))
    (tmp_path / "key").chmod(0o600)
    own = {"tls-ca": "crt", "tls-cert": "crt", "tls-key": "key"}
    options = {key: str(tmp_path / file) for key, file in own.items()}
    settings = read_settings(ServerSettings, None, {**options, "control-host": "localhost"})
    assert deployment.server_tls(settings)[1] == []
    (made / "ca" / "ca.key").write_bytes((tmp_path / "key").read_bytes())
    with pytest.raises(ConfigError, match=r"CA key .* is not an elliptic-curve key"):
        certificates.renew(made)


def test_a_lock_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "state" / ".lock").mkdir(parents=True)  # stands for one that root has left
    settings = read_settings(ServerSettings, None, {"insecure": True, "state": str(tmp_path / "state")})
    with pytest.raises(ConfigError, match=r"\.lock cannot be opened: "), deployment.database(settings):
        pass


def test_a_home_that_is_nobodys_is_named(made: Path) -> None:
    file = made / "server" / "server.toml"
    file.write_text(file.read_text() + 'runs = "~no-such-user/runs"\n')
    with pytest.raises(ConfigError, match='"runs" is "~no-such-user/runs", and there is no such home folder'):
        read_settings(ServerSettings, file, {})


def test_options_win_over_the_file_and_begin_here(made: Path) -> None:
    file = made / "server" / "server.toml"
    options = {"port": 1234, "state": "elsewhere", "log-format": "json", "host": None}
    settings = read_settings(ServerSettings, file, options)
    assert (settings.port, settings.state, settings.log_format) == (1234, "elsewhere", "json")
    assert settings.host == "0.0.0.0"


def test_data_of_the_file_are_a_path_if_one_is_there(made: Path) -> None:
    file = made / "site-a" / "node.toml"
    (made / "site-a" / "scans").mkdir()
    for data, meant in (
        ("scans", str(made / "site-a" / "scans")),
        ("digits", "digits"),
        ("uoft-cs/cifar10", "uoft-cs/cifar10"),
        ("my.module:load", "my.module:load"),
        ("/somewhere/x.npz", "/somewhere/x.npz"),
    ):
        text = file.read_text()
        file.write_text(f'{text}data = "{data}"\n')
        assert read_settings(NodeSettings, file, {}).data == meant
        file.write_text(text)


def test_a_nodes_memory_and_policy_lie_beside_its_file(made: Path) -> None:
    file = made / "site-a" / "node.toml"
    text = file.read_text().replace('state = "state"', 'state = "memory"')
    file.write_text(f'{text}data = "digits"\npolicy = "policy.toml"\n')
    config = read_settings(NodeSettings, file, {"threads": 2}).config()
    assert (config.state, config.policy) == (str(file.parent / "memory"), str(file.parent / "policy.toml"))
    assert (config.name, config.data, config.threads) == ("site-a", "digits", 2)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("prot = 9093", 'unknown key "prot" in FILE, line 10. Did you mean "port"?'),
        ("colour = 1", "unknown key \"colour\" in FILE, line 10. 'specfed server --help' lists all keys."),
        ("health = 1", '"health" in FILE, line 10: input should be a valid string; got 1.'),
        ('log-format = "xml"', '"log-format" in FILE, line 10: '),
        ("[tls]\nca = 1", '"tls" in FILE is a table or list; a configuration file has flat keys only'),
        (
            "insecure = true",
            "choose --tls-ca, --tls-cert and --tls-key for an encrypted connection, or --insecure",
        ),
        ("port = 1", "configuration file FILE is not TOML: Cannot overwrite a value"),
    ],
)
def test_a_mistake_in_the_file_is_named(made: Path, line: str, sentence: str) -> None:
    file = made / "server" / "server.toml"
    with file.open("a") as out:
        out.write(f"# the tenth line follows\n{line}\n")
    with pytest.raises(ConfigError, match=re.escape(sentence.replace("FILE", str(file)))):
        read_settings(ServerSettings, file, {})


def test_a_file_that_is_not_there_and_a_key_that_is_missing(made: Path) -> None:
    with pytest.raises(ConfigError, match=r'there is no configuration file ".*nowhere\.toml"'):
        read_settings(ServerSettings, made / "nowhere.toml", {})
    file = made / "site-a" / "node.toml"
    with pytest.raises(ConfigError, match=re.escape(f'"data" is missing in {file}, and no --data was given')):
        read_settings(NodeSettings, file, {})
    with pytest.raises(ConfigError, match='"name" is missing on the command line; give --name'):
        read_settings(NodeSettings, None, {"server": "a:1", "data": "digits"})


def test_a_key_without_encryption_is_refused(made: Path) -> None:
    options = {"server": "a:1", "data": "digits", "name": "a", "insecure": True, "key": "a.key"}
    with pytest.raises(ConfigError, match="a key is of no use without encryption"):
        read_settings(NodeSettings, None, options)


# --- certificates ------------------------------------------------------------------------------------


def with_expired(made: Path, days: int) -> None:
    """CA and server's certificate as if they had been made so many days ago, the latter for a year."""
    early = datetime.now(UTC) - timedelta(days=days)
    authority = making.new_authority(now=early)
    key = reading.read_key(made / "server" / "server.key")
    certificate = making.new_server_certificate(authority, key, ["127.0.0.1"], 365, early)
    ca = making.certificate_pem(authority.certificate)
    files = {
        "ca/ca.crt": ca,
        "server/ca.crt": ca,
        "ca/ca.key": making.key_pem(authority.key),
        "server/server.crt": making.certificate_pem(certificate),
    }
    writing.write([writing.NewFile(made / name, content) for name, content in files.items()], force=True)


BROKEN = {
    "missing": (
        lambda made: (made / "server" / "server.crt").unlink(),
        "server.crt cannot be read: No such file",
    ),
    "another CA": (
        lambda made: (made / "server" / "ca.crt").write_bytes((other(made) / "ca.crt").read_bytes()),
        "server.crt is not from this CA, but from CN=specfed CA ",
    ),
    "another key": (
        lambda made: (made / "server" / "server.key").write_bytes((other(made) / "server.key").read_bytes()),
        "server.key does not belong to the certificate",
    ),
    "expired": (lambda made: with_expired(made, 366), "UTC; 'specfed certs renew' makes a new one"),
    "another name": (
        lambda made: replace(
            made / "server" / "server.toml", "state =", 'control-host = "192.0.2.1"\nstate ='
        ),
        "holds for fl.example.org, 127.0.0.1, localhost, ::1, but not for 192.0.2.1",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_server_with_a_broken_certificate_does_not_start(made: Path, case: str) -> None:
    break_it, sentence = BROKEN[case]
    break_it(made)
    settings = read_settings(ServerSettings, made / "server" / "server.toml", {})
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        deployment.server_tls(settings)


def test_a_certificate_that_is_about_to_expire_is_told_and_can_be_renewed(made: Path) -> None:
    with_expired(made, 350)
    settings = read_settings(ServerSettings, made / "server" / "server.toml", {})
    (warning,) = deployment.server_tls(settings)[1]
    assert "server.crt expires in 15 days, on " in warning
    before = {path: path.read_bytes() for path in made.rglob("*") if path.is_file()}
    certificates.renew(made)
    assert deployment.server_tls(settings)[1] == []
    after = {path: path.read_bytes() for path in made.rglob("*") if path.is_file()}
    assert [path.name for path in before if before[path] != after[path]] == ["server.crt"]
    assert reading.hosts_of(reading.read_certificates(made / "server" / "server.crt")[0])[0] == "127.0.0.1"


def test_a_key_that_others_can_read_is_told(made: Path) -> None:
    (made / "server" / "server.key").chmod(0o644)
    (made / "site-a" / "site-a.key").chmod(0o640)
    server = read_settings(ServerSettings, made / "server" / "server.toml", {})
    node = read_settings(NodeSettings, made / "site-a" / "node.toml", {"data": "digits"})
    assert "other users can read" in deployment.server_tls(server)[1][0]
    assert "(mode 640)" in deployment.node_identity(node)[1][0]


def test_a_node_without_its_files_is_told(made: Path) -> None:
    node = read_settings(NodeSettings, made / "site-a" / "node.toml", {"data": "digits"})
    (made / "site-a" / "site-a.key").write_bytes((made / "server" / "server.key").read_bytes())
    with pytest.raises(ConfigError, match="is not an OpenSSH elliptic-curve key"):
        deployment.node_identity(node)
    (made / "site-a" / "ca.crt").unlink()
    with pytest.raises(ConfigError, match=r"CA certificate .*ca\.crt cannot be read: No such file"):
        deployment.node_identity(node)


# --- state and locks ---------------------------------------------------------------------------------


def test_state_is_for_one_server(made: Path) -> None:
    settings = read_settings(ServerSettings, made / "server" / "server.toml", {})
    with deployment.database(settings) as file:
        assert file == made / "server" / "state" / "server.db"
        assert file.parent.stat().st_mode & 0o777 == 0o700
        with (
            pytest.raises(ConfigError, match="state is in use by another server"),
            deployment.database(settings),
        ):
            pass
    with deployment.database(settings):
        pass


def test_only_an_insecure_server_keeps_no_state_unasked(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(made.parent)
    with deployment.database(read_settings(ServerSettings, None, {"insecure": True})) as file:
        assert file is None and not Path("state").exists()
    text = (made / "server" / "server.toml").read_text().replace('state = "state"', "")
    (made / "server" / "server.toml").write_text(text)
    with deployment.database(read_settings(ServerSettings, made / "server" / "server.toml", {})) as file:
        assert file == made.parent / "state" / "server.db"


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/1/state")):
        settings = read_settings(ServerSettings, None, {"insecure": True, "state": str(folder)})
        sentence = f"state {folder} is no folder that can be written to: "
        with pytest.raises(SpecfedError, match=re.escape(sentence)), deployment.database(settings):
            pass


def test_a_node_starts_once(made: Path) -> None:
    key = made / "site-a" / "site-a.key"
    key.chmod(0o400)
    with deployment.alone_with(key), key.open("rb") as file:
        with pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with (
            pytest.raises(ConfigError, match="is running on this machine already"),
            deployment.alone_with(key),
        ):
            pass
    with deployment.alone_with(key), deployment.alone_with(None), deployment.alone_with(None):
        pass
