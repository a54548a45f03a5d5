"""``specfed certs``: the keys and certificates of a federation, and what each machine gets of them.

certs/ca/       ca.crt, ca.key            stays with the coordinator, best off the server
certs/server/   ca.crt, server.crt, server.key, server.toml
certs/site-a/   ca.crt, site-a.key, site-a.pub, node.toml
"""

import os
import re
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from common.errors import ConfigError
from specfed.commands.terminal import print_table

if TYPE_CHECKING:
    from specfed.addresses import Address

app = typer.Typer(help="Certificates and keys: what makes a federation of strangers safe.")

FLEET_PORT = 9092
RESERVED = ("ca", "server")  # names of folders beside those of the sites

Out = Annotated[Path, typer.Option(help="Folder with all of it.")]
Force = Annotated[bool, typer.Option("--force", help="Replace what is there.")]
Days = Annotated[int, typer.Option(help="Days that the server's certificate lasts.", min=1, max=3650)]
PassphraseFile = Annotated[
    Path | None, typer.Option(help="File whose first line is the passphrase of the CA's key.")
]
CaFolder = Annotated[Path | None, typer.Option("--ca", help="Folder with ca.crt and ca.key; OUT/ca.")]


@app.command()
def init(
    host: Annotated[list[str], typer.Option(help="Name or IP address that nodes dial; several are fine.")],
    out: Out = Path("certs"),
    port: Annotated[int, typer.Option(help="Port that nodes dial.", min=1, max=65535)] = FLEET_PORT,
    days: Days = 365,
    passphrase: Annotated[
        bool, typer.Option("--passphrase", help="Ask for a passphrase for the CA's key.")
    ] = False,
    passphrase_file: PassphraseFile = None,
    force: Force = False,
) -> None:
    """Make a CA, and a certificate, key and configuration file for the server."""
    from specfed.certs import making, writing

    secret = _passphrase(passphrase_file)
    if passphrase and not secret:
        secret = typer.prompt("Passphrase", hide_input=True, confirmation_prompt=True).encode()
    authority, key = making.new_authority(), making.new_key()
    certificate = making.new_server_certificate(authority, key, host, days)
    ca, server = making.certificate_pem(authority.certificate), out / "server"
    files = [
        writing.NewFile(out / "ca" / "ca.crt", ca),
        writing.NewFile(out / "ca" / "ca.key", making.key_pem(authority.key, secret), writing.PRIVATE),
        writing.NewFile(server / "ca.crt", ca),
        writing.NewFile(server / "server.crt", making.certificate_pem(certificate)),
        writing.NewFile(server / "server.key", making.key_pem(key), writing.PRIVATE),
    ]
    if not os.path.lexists(server / "server.toml"):  # --force is about keys, not about an operator's settings
        files.append(writing.NewFile(server / "server.toml", _server_toml(port).encode()))
    writing.write(files, force)
    print(f"CA      {out / 'ca'} · keep it off the server; only 'certs init' and 'renew' need its key")
    print(f"server  {server} · for {', '.join(host)} · until {certificate.not_valid_after_utc:%Y-%m-%d}")
    print(f"next    specfed server --config {server / 'server.toml'}")


@app.command()
def issue(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="The sites' names.")],
    out: Out = Path("certs"),
    server: Annotated[
        str | None, typer.Option(help="HOST:PORT that the site dials; the certificate's first host.")
    ] = None,
    public_key: Annotated[
        Path | None, typer.Option(help="Public key that the site has made; the bundle has no key then.")
    ] = None,
    force: Force = False,
) -> None:
    """Make a folder for each site: CA certificate, key pair and node.toml."""
    from specfed.addresses import Address
    from specfed.certs import making, reading, writing

    for name in names:
        _check_name(name)
    if public_key is not None and len(names) > 1:
        raise ConfigError(f"--public-key takes one site; got {', '.join(names)}")
    ca = reading.read_file(out / "ca" / "ca.crt", "CA certificate")
    address = Address.parse(server) if server else _dialled(out / "server")
    files = []
    for name in names:
        folder = out / name
        files.append(writing.NewFile(folder / "ca.crt", ca))
        # --force is about keys, not about an operator's settings, such as the policy.
        if server or not os.path.lexists(folder / "node.toml"):
            files.append(writing.NewFile(folder / "node.toml", _node_toml(name, str(address)).encode()))
        if public_key is None:
            files += making.node_key_files(folder, name)
        else:
            files.append(making.public_key_file(folder, name, reading.read_public_key(public_key)))
    writing.write(files, force)
    for name in names:
        enrol = ["specfed", "enroll", "--config", str(out / "server" / "server.toml")]
        print(f"{out / name} · for {name} · next, where the server runs:")
        print(f"  {shlex.join([*enrol, str(out / name / f'{name}.pub')])}")


@app.command()
def key(
    name: Annotated[str, typer.Argument(help="This site's name.")],
    out: Annotated[Path, typer.Option(help="Folder for the two files.")] = Path("."),
    force: Force = False,
) -> None:
    """On a node: make its own key pair, so that the private key never travels."""
    from specfed.certs import making, reading, writing

    _check_name(name)
    files = making.node_key_files(out, name)
    writing.write(files, force)
    public = files[1].path
    print(f"{files[0].path} stays here; send {public} to the coordinator")
    print(f"key     {reading.fingerprint(reading.read_public_key(public))}")


@app.command()
def renew(
    out: Out = Path("certs"),
    host: Annotated[
        list[str] | None, typer.Option(help="New names; those of the old certificate, if not given.")
    ] = None,
    days: Days = 365,
    passphrase_file: PassphraseFile = None,
    ca: CaFolder = None,
) -> None:
    """Make a new certificate for the server's key from the same CA; sites need do nothing."""
    from specfed.certs import checking, making, reading, writing

    folder, server = ca or out / "ca", out / "server"
    secret = _passphrase(passphrase_file)
    if (
        not secret
        and sys.stdin.isatty()
        and reading.is_encrypted(reading.read_file(folder / "ca.key", "CA key"))
    ):
        secret = typer.prompt("Passphrase", hide_input=True).encode()
    authority = making.Authority(
        reading.read_certificates(folder / "ca.crt", "CA certificate")[0],
        reading.read_signing_key(folder / "ca.key", secret),
    )
    for problem in (
        checking.key_problem(authority.certificate, authority.key, f"CA key {folder / 'ca.key'}"),
        checking.chain_problem(
            [authority.certificate],
            reading.read_certificates(server / "ca.crt", "CA certificate"),
            str(folder / "ca.crt"),
        ),
    ):
        if problem:
            raise ConfigError(problem)
    old = reading.read_certificates(server / "server.crt")[0]
    names = host or reading.hosts_of(old)
    certificate = making.new_server_certificate(
        authority, reading.read_key(server / "server.key"), names, days
    )
    writing.write([writing.NewFile(server / "server.crt", making.certificate_pem(certificate))], force=True)
    print(f"{server / 'server.crt'} · until {certificate.not_valid_after_utc:%Y-%m-%d} · restart the server")


@app.command()
def show(out: Out = Path("certs")) -> None:
    """List certificates and public keys, and when they expire."""
    from cryptography import x509
    from rich.table import Table

    from specfed.certs import checking, reading

    now = datetime.now(UTC)
    table = Table("file", "for", "expires", "", box=None, pad_edge=False)
    shown: list[x509.Certificate] = []
    for file in sorted({*out.glob("*.crt"), *out.glob("*/*.crt")}):
        certificate = reading.read_certificates(file)[0]
        if certificate in shown:  # each bundle has the CA's
            continue
        shown.append(certificate)
        left = checking.days_left(certificate, now)
        state = f"in {left:.0f} days" if left >= 0 else "EXPIRED"
        hosts = ", ".join(reading.hosts_of(certificate)) or certificate.subject.rfc4514_string()
        table.add_row(str(file), hosts, f"{certificate.not_valid_after_utc:%Y-%m-%d}", state)
    for file in sorted({*out.glob("*.pub"), *out.glob("*/*.pub")}):
        table.add_row(str(file), file.stem, "never", reading.fingerprint(reading.read_public_key(file)))
    if not table.row_count:
        raise ConfigError(f"there are no certificates in {out}; 'specfed certs init' makes them")
    print_table(table)


def _passphrase(file: Path | None) -> bytes:
    from specfed.certs import reading

    if file is None:
        return b""
    lines = reading.read_file(file, "passphrase file").splitlines()
    if not lines or not lines[0]:
        raise ConfigError(f"passphrase file {file} is empty; it takes the passphrase in its first line")
    return lines[0]


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,59}", name) or name in RESERVED:
        raise ConfigError(
            f'"{name}" is not a site\'s name; it takes letters, digits, ".", "_" and "-", at most 60, '
            f"and is none of {' and '.join(RESERVED)}"
        )


def _dialled(server: Path) -> "Address":
    """Where nodes dial the server whose folder this is."""
    from specfed.addresses import Address
    from specfed.certs import making, reading
    from specfed.deployment import ServerSettings, read_settings

    hosts = reading.hosts_of(reading.read_certificates(server / "server.crt")[0])
    named = next((host for host in hosts if not host.startswith("*.")), None)
    if named is None or (named in making.LOCAL_NAMES and named != hosts[0]):
        what = f"certificate {server / 'server.crt'}"
        raise ConfigError(f"{what} names no host that a site can dial; give --server HOST:PORT")
    return Address(named, read_settings(ServerSettings, server / "server.toml", {}).port)


def _server_toml(port: int) -> str:
    return f"""\
# specfed server --config server.toml
# Paths begin at this file's folder; options of the command win.
port = {port}             # nodes dial it
control-port = 8000     # runs are started at it; only this machine reaches it
state = "state"         # enrolments survive a restart here
tls-ca = "ca.crt"
tls-cert = "server.crt"
tls-key = "server.key"
"""


def _node_toml(name: str, server: str) -> str:
    return f"""\
# specfed node --config node.toml
# Paths begin at this file's folder; options of the command win.
server = "{server}"
name = "{name}"
tls-ca = "ca.crt"
key = "{name}.key"
state = "state"           # what algorithms remember between rounds
# policy = "policy.toml"  # what this site lets runs do
# data = "path/to/data"   # this site's data, or --data
"""
