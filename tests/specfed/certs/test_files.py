"""Certificates and keys on their way to files and back. The oracles are ssh's fingerprints and Flower's loaders."""

import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from common.errors import ConfigError
from specfed.certs import making, reading, writing
from tests import disks

KNOWN_KEY = (
    "ecdsa-sha2-nistp384 AAAAE2VjZHNhLXNoYTItbmlzdHAzODQAAAAIbmlzdHAzODQAAABhBMpVS6p2NOC8y2LNNs"
    "sHwtopxVlRt5MqU0NtnvlL2hT512j/e8/XnyGDgxZuT0VKrqmU0be5LdNcAHXi2ymEpjyq3aETh0I6hEYqdjNYgPSAUGj4FfO8XgDknI98gbW3zg== site-a\n"
)
KNOWN_FINGERPRINT = "SHA256:IyALza44wGOHL3/Cyg/hBz8yzmw6N6FSNNwnMXtrq/4"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_flower_takes_a_nodes_keys(tmp_path: Path) -> None:
    """The very calls of flower-supernode and of its registration."""
    from flwr.supercore.primitives.asymmetric import uses_nist_ec_curve

    writing.write(making.node_key_files(tmp_path / "site-a", "site-a"))
    private, public = tmp_path / "site-a" / "site-a.key", tmp_path / "site-a" / "site-a.pub"
    loaded = serialization.load_ssh_private_key(private.read_bytes(), None)
    known = serialization.load_ssh_public_key(public.read_bytes())
    assert isinstance(loaded, ec.EllipticCurvePrivateKey) and isinstance(known, ec.EllipticCurvePublicKey)
    assert uses_nist_ec_curve(known) and loaded.curve.name == "secp384r1"
    assert loaded.public_key() == known == reading.read_public_key(public)
    assert reading.read_node_key(private).private_numbers() == loaded.private_numbers()
    assert (mode(private), mode(public), mode(private.parent)) == (0o600, 0o644, 0o700)
    assert public.read_text().startswith("ecdsa-sha2-nistp384 ") and public.read_text().endswith(" site-a\n")


def test_a_fingerprint_is_that_of_ssh_keygen(tmp_path: Path) -> None:
    public = tmp_path / "known.pub"  # its fingerprint below is what ssh-keygen -lf printed for it
    public.write_text(KNOWN_KEY)
    assert reading.fingerprint(reading.read_public_key(public)) == KNOWN_FINGERPRINT


def test_keys_come_back_with_their_passphrase_only(tmp_path: Path) -> None:
    key = making.new_key()
    for name, secret in (("open", b""), ("closed", b"correct horse")):
        writing.write([writing.NewFile(tmp_path / name, making.key_pem(key, secret), writing.PRIVATE)])
        back = reading.read_key(tmp_path / name, secret)
        assert back.private_numbers() == key.private_numbers()
    assert reading.read_key(tmp_path / "open", b"needless").private_numbers() == key.private_numbers()
    with pytest.raises(ConfigError, match="closed cannot be read: the passphrase is wrong"):
        reading.read_key(tmp_path / "closed", b"battery staple")
    with pytest.raises(ConfigError, match="closed needs its passphrase; give --passphrase-file"):
        reading.read_key(tmp_path / "closed")


def test_files_are_written_all_or_not_at_all(tmp_path: Path) -> None:
    old, new = writing.NewFile(tmp_path / "a" / "old", b"1"), writing.NewFile(tmp_path / "b" / "new", b"2")
    writing.write([old])
    with pytest.raises(ConfigError, match="old is there already; --force replaces it"):
        writing.write([new, writing.NewFile(old.path, b"3")])
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        writing.write([new, writing.NewFile(tmp_path / "file" / "x", b"4")])
    assert not new.path.exists() and old.path.read_bytes() == b"1"
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["file", "old"]
    writing.write([new, writing.NewFile(old.path, b"3")], force=True)
    assert (old.path.read_bytes(), new.path.read_bytes()) == (b"3", b"2")


@pytest.mark.parametrize(
    ("read", "sentence"),
    [
        (reading.read_certificates, "certificate FILE holds no certificate in PEM form"),
        (reading.read_key, "key FILE cannot be read: it is no private key in PEM form"),
        (reading.read_node_key, "node key FILE is not an OpenSSH elliptic-curve key without a passphrase"),
        (reading.read_public_key, "FILE is not the public key of a node, such as site-a.pub"),
    ],
)
def test_nonsense_and_missing_files_are_named(tmp_path: Path, read: object, sentence: str) -> None:
    file = tmp_path / "nonsense"
    file.write_bytes(b"-----BEGIN NOTHING-----\n\xff")
    with pytest.raises(ConfigError) as error:
        read(file)  # type: ignore[operator]
    assert sentence.replace("FILE", str(file)) in str(error.value)
    with pytest.raises(ConfigError, match="nowhere cannot be read: No such file"):
        read(tmp_path / "nowhere")  # type: ignore[operator]


def test_a_private_key_is_not_taken_for_its_public_half(tmp_path: Path) -> None:
    writing.write(making.node_key_files(tmp_path, "site-a"))
    with pytest.raises(ConfigError, match="that is the private key, it must stay on its node"):
        reading.read_public_key(tmp_path / "site-a.key")


@pytest.mark.parametrize("way", disks.WAYS)
def test_a_full_disk_is_named_and_leaves_no_half_file(tmp_path: Path, way: str) -> None:
    program = (
        "import sys; from pathlib import Path; from specfed.certs.writing import NewFile, write\n"
        "folder = Path(sys.argv[1])\n"
        "try: write([NewFile(folder / 'a', b'small'), NewFile(folder / 'b', bytes(100_000))])\n"
        "except Exception as error: print(error)\n"
        "print([path.name for path in folder.iterdir()])\n"
    )
    done = disks.run(way, 64, tmp_path / "disk", program)
    said, left = done.stdout.splitlines()
    assert said.startswith(f"{tmp_path / 'disk' / 'b'} cannot be written: ") and left == "[]", done.stderr
