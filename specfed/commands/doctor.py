"""``specfed doctor``: what is wrong, on either end, in words."""

import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from common.config import Checked, Value
from common.errors import ConfigError, SpecfedError
from common.text import kebab
from specfed.commands.node import node as start_node
from specfed.commands.options import given
from specfed.commands.server import server as start_server

if TYPE_CHECKING:
    from specfed.deployment import NodeSettings
    from specfed.doctor.finding import Finding

app = typer.Typer(help="What is wrong with a node or a server, and how to mend it; changes nothing.")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object, for machines.")]


@app.callback(invoke_without_command=True)
def doctor(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option(help="A node's or a server's TOML file; its keys tell which.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check a node or a server, on its machine: one line a check, and how to mend what is wrong.

    Leaves with 0, or with the exit code of the first problem. It changes nothing.
    """
    if context.invoked_subcommand is not None:
        if config is not None or as_json:
            raise ConfigError(f"give these options after 'doctor {context.invoked_subcommand}'")
        return
    if config is None:
        raise ConfigError(
            "--config is missing; give node.toml or server.toml, or 'doctor node' with its options"
        )
    raise typer.Exit(_left(examine(side_of(config), config, {}, as_json)))


def side_of(file: Path) -> str:
    """Whose file it is: the side that knows more of its keys."""
    from specfed.deployment import NodeSettings, ServerSettings
    from specfed.settings import read_file

    keys = set(read_file(file, "configuration file")[0])
    kinds: dict[str, type[Checked]] = {"node": NodeSettings, "server": ServerSettings}
    known = {side: len(keys & {kebab(key) for key in kind.model_fields}) for side, kind in kinds.items()}
    if known["node"] == known["server"]:
        raise ConfigError(
            f"{file} may be a node's or a server's; say which: 'specfed doctor node --config {file}'"
        )
    return max(known, key=lambda side: known[side])


def examine(side: str, file: Path | None, options: Mapping[str, Value | None], as_json: bool) -> int:
    """Check one side and print what was found as it comes; the exit code."""
    from specfed.doctor.finding import exit_code

    found: list[Finding] = []
    for finding in _findings(side, file, options):
        found.append(finding)
        if not as_json:
            print(_line(finding), flush=True)
    code = exit_code(found)
    if as_json:
        record = {"side": side, "exit-code": code, "findings": [finding.as_dict() for finding in found]}
        print(json.dumps(record, ensure_ascii=False))
    else:
        print(_summary(side, found))
    return code


def _left(code: int) -> int:
    """The exit code, unless a check is still at work: then the process ends here."""
    from specfed.doctor.finding import leave_late_checks

    leave_late_checks(code)
    return code


def _findings(side: str, file: Path | None, options: Mapping[str, Value | None]) -> "Iterator[Finding]":
    from specfed import deployment
    from specfed.doctor import node, server
    from specfed.doctor.finding import ok, problem

    try:
        if side == "node":
            checks = node.findings(_node_settings(file, options))
        else:
            checks = server.findings(deployment.read_settings(deployment.ServerSettings, file, options))
    except SpecfedError as error:
        yield problem("settings", str(error), f"'specfed {side} --help' lists what it takes", type(error))
        return
    yield ok("settings", f"{file or 'the command line'} describes a {side}")
    yield from checks


def _node_settings(file: Path | None, options: Mapping[str, Value | None]) -> "NodeSettings":
    """A node's settings; empty ``data`` if none are named, since all else can be checked without."""
    from specfed.deployment import NodeSettings, read_settings
    from specfed.settings import read_file

    if options.get("data") is not None or (file and "data" in read_file(file, "configuration file")[0]):
        return read_settings(NodeSettings, file, options)
    return read_settings(NodeSettings, file, {**options, "data": "none"}).model_copy(update={"data": ""})


def _line(finding: "Finding") -> str:
    fix = f" -> {finding.fix}" if finding.fix else ""
    return f"{finding.state:8} {finding.name:13} {finding.text}{fix}"


def _summary(side: str, found: "list[Finding]") -> str:
    states = [finding.state for finding in found]
    counts = [(states.count("problem"), "problem"), (states.count("warning"), "warning")]
    told = [f"{count} {what}{'s' if count > 1 else ''}" for count, what in counts if count]
    return f"{side}: {', '.join(told) or 'all is well'}"


def _like(command: Callable[..., None], side: str) -> Callable[..., int]:
    """A command with the very options of ``command`` and ``--json``, which checks instead of starting."""

    def check(context: typer.Context, config: Path | None = None, as_json: bool = False, **_: Any) -> int:
        return _left(examine(side, config, given(context), as_json))

    taken = inspect.signature(command, eval_str=True)
    more = inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Json)
    parameters = [*taken.parameters.values(), more]
    check.__signature__ = taken.replace(parameters=parameters, return_annotation=int)  # type: ignore[attr-defined]
    check.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return check


app.command("node", help="Check a node; takes the options of 'specfed node'.")(_like(start_node, "node"))
app.command("server", help="Check a server; takes the options of 'specfed server'.")(
    _like(start_server, "server")
)
