"""The report of a run as one HTML page: no script, no font, no picture, nothing to fetch.

It is written for the people who run a federation in a hospital or a bank: what came out, who brought
what, whom to look at and why, what went wrong, and what exactly was run.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from common.ledger import ModelCard
from common.text import shorten
from common.traits import UNWEIGHED, filter_width, guards_at_work, is_scored
from server_app.report.charts import clients_over_rounds, progress, trust
from server_app.report.contribution import Contribution, contributions
from server_app.report.drift import drift
from server_app.report.markup import Html, el
from server_app.report.parts import (
    MOST_ROWS,
    MOST_TEXT,
    NONE,
    bar_of,
    capped,
    cell,
    column,
    cut_off,
    dimensions,
    duration,
    in_digits,
    in_full,
    in_percent,
    plus_minus,
    ranges,
    row_name,
    section,
    table,
    tally,
)
from server_app.report.run_view import UNENDED, Flagged, Problem, RunView, flagged, problems
from server_app.report.style import POLICY, STYLE

MOST_NAMES = 5  # in one cell

BADGES = {
    "completed": "✓",
    "completed-degraded": "!",
    "failed": "✕",
    "stopped": "■",
    UNENDED: "?",
}
MEASURED_ON = {
    "server": "the server’s own test data",
    "nodes": "the nodes’ own validation rows",
    "none": "nothing",
}
WEIGHTINGS = {
    "uniform": "the same weight for every client",
    "examples": "by the example counts that the nodes report",
    "spectralfed": "SpectralFed: entropy of {layer}’s update",
    "spectralfuse": "SpectralFuse: entropy of {layer}’s update and alignment of the head’s, "
    "fused by a Kalman filter",
    "shapfed": "ShapFed: class-wise alignment of the head’s update with the cohort’s",
    "cgsv": "CGSV: reputation from the cosine of the whole update with the cohort’s",
    "feddisco": "FedDisco: example counts, less for label histograms far from uniform; nodes report both",
    "fedawa": "FedAWA: learnt from the distances between the updates",
    "fedlaw": "FedLAW: learnt on the server’s own proxy data, with the size of the model",
}
CONTRIBUTIONS = {
    "off": "no scores are computed",
    "observe": "scores are recorded, and do not weigh",
    "weight": "scores weigh the aggregation",
}
GUARDS = {
    "off": "nothing is looked for",
    "observe": "noise, copies, replays and empty updates are flagged; their weight stays",
    "weight": "noise, replays and empty updates are left out of their round, copies share one weight",
}
CAVEAT = (
    "These are hints, not verdicts. All scores are computed from model updates alone, so they cannot "
    "prove that a client has the data it says it has, or that it has not. Talk to the site before you act."
)


def page(run: RunView) -> str:
    """The whole page. Works on every ledger that has a header, however early it stops."""
    rows = contributions(run)
    main = el(
        "main",
        _head(run),
        _tiles(run),
        _facts(run),
        progress(run),
        clients_over_rounds(run, rows),
        _table_of_contributions(rows),
        _suspects(run),
        _wrong(problems(run), run.site),
        trust(run),
        drift(run),
        _nodes(run),
        _details(run),
    )
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", http_equiv="Content-Security-Policy", content=POLICY),
        el("title", f"{run.header.run_id} · specfed report"),
        el("style", STYLE),
    )
    return f"<!doctype html>\n{el('html', head, el('body', main), lang='en')}\n"


def _head(run: RunView) -> Html:
    badge = el(
        "span",
        el("span", BADGES[run.status], aria_hidden="true"),
        f" {run.status}",
        class_=f"badge {run.status.replace(' ', '-')}",
    )
    took = f" · {duration(run.seconds)}" if run.seconds is not None else ""
    error = f" ({run.end.error})" if run.end and run.end.error else ""
    return el(
        "header",
        el("p", f"specfed · report of a federated training run{_for(run)}", class_="kicker"),
        el("div", el("h1", shorten(run.header.run_id, MOST_TEXT)), badge, class_="title"),
        el("p", f"{_date(run.header.time)}{took}", class_="muted"),
        el("p", shorten(run.reason, 2 * MOST_TEXT) + error, class_="reason") if run.reason + error else "",
    )


def _for(run: RunView) -> str:
    return f", for {shorten(run.site, MOST_TEXT)} alone" if run.site else ""


def _date(text: str) -> str:
    try:
        return f"{datetime.fromisoformat(text).astimezone(UTC):%d %B %Y, %H:%M} UTC".removeprefix("0")
    except ValueError:
        return text


def _tiles(run: RunView) -> Html:
    planned = run.rounds[-1].rounds if run.rounds else run.header.config.get("rounds", NONE)
    done = run.end.rounds if run.end else len(run.rounds)
    tiles = {
        "accuracy": in_percent(run.accuracy),
        "loss": in_digits(run.loss),
        "rounds": f"{done} of {planned}",
        "nodes": f"{len(run.nodes) + run.others:,}",
        "time": duration(run.seconds) if run.seconds is not None else NONE,
    }
    return el("dl", *(el("div", el("dt", k), el("dd", v)) for k, v in tiles.items()), class_="tiles")


def _facts(run: RunView) -> Html:
    config, model = run.header.config, run.header.model
    examples = sum(node.examples for node in run.nodes)
    facts = {
        "Model": f"{model.name}, {model.parameters:,} parameters in {model.tensors} tensors",
        "Head": f"{model.head} ({dimensions(model.head_shape)})",
        "Gradient filter": _filter(config, model),
        "Local rule": _rule(config),
        "Weighting": _weighting(config),
        "Contribution": _contribution(config),
        "Aggregation": _aggregation(config),
        "Guards": _guards(config),
        "Accuracy and loss": _measured(run),
        "Nodes": f"{len(run.nodes) + run.others}, and of the others their number is all that is told"
        if run.site
        else f"{len(run.nodes)} with {examples:,} training examples as they report them",
    }
    pairs = (el("div", el("dt", k), el("dd", shorten(v, MOST_TEXT))) for k, v in facts.items())
    return section("Key facts", el("dl", *pairs, class_="facts"))


def _filter(config: Mapping[str, object], model: ModelCard) -> str:
    if config.get("filter") == "none":
        return "none"
    name = str(config.get("filter", NONE)).upper()
    return f"{name}, {filter_width(config)}, on {model.filtered_tensors} of {model.tensors} tensors"


def _rule(config: Mapping[str, object]) -> str:
    name = str(config.get("algorithm", NONE))
    prox = f", mu {config.get('prox-mu', NONE)}" if name == "fedprox" else ""
    return f"{name}{prox}, learning rate {config.get('learning-rate', NONE)}"


def _weighting(config: Mapping[str, object]) -> str:
    layer = str(config.get("entropy-layer") or "the head")
    return _explained(config.get("weighting"), WEIGHTINGS).replace("{layer}", layer)


def _contribution(config: Mapping[str, object]) -> str:
    if not is_scored(config.get("weighting")):
        return "off – this weighting scores nobody"
    mode = _explained(config.get("contribution"), CONTRIBUTIONS)
    weighs = config.get("contribution") == "weight"
    return mode if weighs else f"{mode}; base weighting {config.get('base-weighting', NONE)}"


def _aggregation(config: Mapping[str, object]) -> str:
    name = str(config.get("aggregation", NONE))
    return f"{name} – it takes no weights" if name in UNWEIGHED else name


def _guards(config: Mapping[str, object]) -> str:
    chosen = config.get("guards")
    mode = guards_at_work(chosen, config.get("contribution"), config.get("weighting"))
    return _explained(mode, GUARDS) if mode == chosen else "off – this run scores nobody"


def _measured(run: RunView) -> str:
    if run.measured is None:
        return "not measured"
    return f"measured on {MEASURED_ON[run.measured.evaluated_on]}, round {run.measured.round}"


def _explained(value: object, meanings: Mapping[str, str]) -> str:
    name = str(NONE if value is None else value)
    return f"{name} – {meanings[name]}" if name in meanings else name


def _table_of_contributions(rows: list[Contribution]) -> Html:
    largest = max((row.final_weight or 0.0 for row in rows), default=0.0)
    signals = [name for name in (rows[0].signals if rows else ()) if any(r.signals[name] for r in rows)]
    scored = any(row.score is not None for row in rows)
    numbers = [
        "Examples",
        "Rounds",
        *(["Score"] if scored else []),
        "Mean weight",
        "Last weight",
        *(f"Mean {name}" for name in signals),
        "Flagged",
        "Quarantined",
        "Errors",
        "Missing",
    ]
    head = [column("Client"), *(column(name, "number") for name in numbers)]
    body = (
        el(
            "tr",
            row_name(row.client),
            cell(in_full(row.examples)),
            cell(in_full(row.rounds)),
            cell(plus_minus(row.score, row.std)) if scored else "",
            cell(in_digits(row.mean_weight)),
            bar_of(row.final_weight, largest),
            *(cell(in_digits(row.signals[name])) for name in signals),
            *(tally(count) for count in (row.flagged, row.quarantined, row.errors, row.missing)),
        )
        for row in rows
    )
    note = (
        "Score and last weight are those of a client’s last accepted round; “±” is one standard deviation. "
        "The mean weight is over the last half of the rounds, the mean of a signal over all, and both only "
        "over rounds in which the client had one. Examples are what the nodes report; nobody can check them. "
        "A score that is flagged in many rounds is not to be trusted: see below."
    )
    return section("Contribution", table(head, body), el("p", note, class_="muted note"))


def _suspects(run: RunView) -> Html:
    suspects = run.end.suspects if run.end else ()
    flags = flagged(run)
    items = [
        *(_hint(suspect.client, suspect.text, "over the whole run") for suspect in suspects),
        *(_hint(entry.client, entry.strongest.text, _evidence(entry)) for entry in flags),
    ]
    shown: Html = (
        el("ul", *items[:MOST_ROWS], class_="hints")
        if items
        else el("p", f"{run.site} does not stand out." if run.site else "No client stands out in this run.")
    )
    return section("Look at these", shown, cut_off(len(items)), el("p", CAVEAT, class_="caveat"))


def _hint(client: str, text: str, evidence: str) -> Html:
    return el(
        "li",
        el("span", "advisory", class_="tag"),
        el("strong", shorten(client, MOST_TEXT)),
        el("div", shorten(text, MOST_TEXT), el("span", evidence, class_="muted")),
    )


def _evidence(entry: Flagged) -> str:
    rounds = len(entry.rounds)
    flag = entry.strongest
    return (
        f"{entry.test}, flagged in {rounds} round{'s' if rounds > 1 else ''} ({_rounds(entry.rounds)}); "
        f"strongest in round {entry.strongest_round}: {flag.value:.3g} against a threshold of "
        f"{flag.threshold:.3g}"
    )


def _wrong(found: tuple[Problem, ...], site: str) -> Html:
    if not found:
        whose = f"every reply of {shorten(site, MOST_TEXT)}" if site else "every reply"
        return section("What went wrong", el("p", f"Nothing: {whose} came in time and was accepted."))
    body = (
        el(
            "tr",
            cell(_rounds(problem.rounds), style="rounds"),
            el("td", problem.what),
            el("td", shorten(capped(problem.clients, MOST_NAMES), MOST_TEXT) or NONE, class_="words"),
            el("td", shorten(problem.reason, MOST_TEXT) or NONE, class_="words"),
        )
        for problem in found[:MOST_ROWS]
    )
    head = [column(name) for name in ("Rounds", "What", "Clients", "Reason")]
    return section("What went wrong", table(head, body), cut_off(len(found)))


def _rounds(numbers: Sequence[int]) -> str:
    return shorten(ranges(numbers), 60)


def _nodes(run: RunView) -> Html:
    if not run.nodes:
        return section("Nodes", el("p", "No node had joined."))
    head = [
        column("Node"),
        column("Examples", "number"),
        column("Classes", "number"),
        *(column(name) for name in ("Input", "Device", "Versions", "Data fingerprint")),
    ]
    body = (
        el(
            "tr",
            row_name(node.name),
            cell(in_full(node.examples)),
            cell(in_full(node.classes)),
            el("td", dimensions(node.input_shape)),
            el("td", shorten(node.device, MOST_TEXT), class_="words"),
            el("td", shorten(_versions(node.versions), MOST_TEXT), class_="words"),
            el("td", el("code", shorten(node.fingerprint, 17), title=node.fingerprint)),
        )
        for node in run.nodes
    )
    return section("Nodes", table(head, body))


def _details(run: RunView) -> Html:
    header = run.header
    config = {key: _value(header.config[key]) for key in sorted(header.config)}
    other = {"run folder": header.folder, "ledger format": str(header.format)}
    if header.eval_fingerprint:
        other["server’s test data"] = header.eval_fingerprint
    if header.proxy_fingerprint:
        other["server’s proxy data"] = header.proxy_fingerprint
    return el(
        "details",
        el("summary", "Full configuration and versions"),
        el(
            "div",
            _pairs("Configuration", config),
            _pairs("Versions on the server", header.versions),
            _pairs("Run", other),
            class_="listings",
        ),
    )


def _pairs(title: str, values: Mapping[str, str]) -> Html:
    rows = (el("tr", el("th", key, scope="row"), el("td", el("code", v))) for key, v in values.items())
    return el("table", el("caption", title), el("tbody", *rows), class_="listing")


def _versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))


def _value(value: object) -> str:
    """As it stands in a TOML file."""
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)
