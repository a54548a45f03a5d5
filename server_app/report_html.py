"""The report of a run as one HTML page: no script, no font, no picture, nothing to fetch.

It is written for the people who run a federation in a hospital or a bank: what came out, who brought
what, whom to look at and why, what went wrong, and what exactly was run.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from common.ledger import ModelCard
from server_app.contribution import Contribution, contributions
from server_app.markup import NO_BREAK_SPACE, Html, el, shorten
from server_app.report_style import POLICY, STYLE
from server_app.run_view import UNENDED, Flagged, Problem, RunView, flagged, problems
from server_app.svg import COLOURS, LONGEST_LABEL, Chart, Series, Values, line_chart, palette

Labelled = frozenset[str]
NONE = "–"
EXTREMES = 3  # so many of the highest and of the lowest clients are labelled if there are many
MOST_ROWS = 30  # of a list of problems or flags
MOST_NAMES = 5  # in one cell
MOST_TEXT = 300  # characters of a text that came from outside

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
        _progress(run),
        _clients(run, rows),
        _table_of_contributions(rows),
        _suspects(run),
        _wrong(problems(run)),
        _trust(run),
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


def duration(seconds: float) -> str:
    """71 s, 3 min 05 s, 2 h 07 min."""
    whole = round(seconds)
    if whole < 120:
        return f"{whole}{NO_BREAK_SPACE}s" if seconds >= 10 else f"{seconds:.1f}{NO_BREAK_SPACE}s"
    if whole < 7200:
        return f"{whole // 60}{NO_BREAK_SPACE}min {whole % 60:02d}{NO_BREAK_SPACE}s"
    return f"{whole // 3600:,}{NO_BREAK_SPACE}h {whole % 3600 // 60:02d}{NO_BREAK_SPACE}min"


def ranges(numbers: Sequence[int]) -> str:
    """Rising numbers with their stretches joined: 3–5, 8."""
    stretches: list[list[int]] = []
    for number in numbers:
        if stretches and number == stretches[-1][-1] + 1:
            stretches[-1].append(number)
        else:
            stretches.append([number])
    return ", ".join(f"{s[0]}–{s[-1]}" if len(s) > 1 else str(s[0]) for s in stretches)


def capped(items: Sequence[str], most: int) -> str:
    """The items with commas between; of too many the first ones, "and 37 more"."""
    shown = ", ".join(items[:most])
    return f"{shown} and {len(items) - most:,} more" if len(items) > most else shown


# -- top of the page ---------------------------------------------------------------------------------


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
        el("p", "specfed · report of a federated training run", class_="kicker"),
        el("div", el("h1", shorten(run.header.run_id, MOST_TEXT)), badge, class_="title"),
        el("p", f"{_date(run.header.time)}{took}", class_="muted"),
        el("p", shorten(run.reason, 2 * MOST_TEXT) + error, class_="reason") if run.reason + error else "",
    )


def _date(text: str) -> str:
    try:
        return f"{datetime.fromisoformat(text).astimezone(UTC):%d %B %Y, %H:%M} UTC".removeprefix("0")
    except ValueError:
        return text


def _tiles(run: RunView) -> Html:
    planned = run.rounds[-1].rounds if run.rounds else run.header.config.get("rounds", NONE)
    done = run.end.rounds if run.end else len(run.rounds)
    tiles = {
        "accuracy": _percent(run.accuracy),
        "loss": _number(run.loss),
        "rounds": f"{done} of {planned}",
        "nodes": f"{len(run.nodes):,}",
        "time": duration(run.seconds) if run.seconds is not None else NONE,
    }
    return el("dl", *(el("div", el("dt", k), el("dd", v)) for k, v in tiles.items()), class_="tiles")


def _facts(run: RunView) -> Html:
    config, model = run.header.config, run.header.model
    examples = sum(node.examples for node in run.nodes)
    facts = {
        "Model": f"{model.name}, {model.parameters:,} parameters in {model.tensors} tensors",
        "Head": f"{model.head} ({_shape(model.head_shape)})",
        "Gradient filter": _filter(config, model),
        "Local rule": _rule(config),
        "Weighting": _weighting(config),
        "Contribution": _contribution(config),
        "Accuracy and loss": _measured(run),
        "Nodes": f"{len(run.nodes)} with {examples:,} training examples as they report them",
    }
    pairs = (el("div", el("dt", k), el("dd", shorten(v, MOST_TEXT))) for k, v in facts.items())
    return _section("Key facts", el("dl", *pairs, class_="facts"))


def _filter(config: Mapping[str, object], model: ModelCard) -> str:
    if config.get("filter") == "none":
        return "none"
    ratio = f"ratio {config.get('filter-ratio', NONE)}"
    name = str(config.get("filter", NONE)).upper()
    return f"{name}, {ratio}, on {model.filtered_tensors} of {model.tensors} tensors"


def _rule(config: Mapping[str, object]) -> str:
    name = str(config.get("algorithm", NONE))
    prox = f", mu {config.get('prox-mu', NONE)}" if name == "fedprox" else ""
    return f"{name}{prox}, learning rate {config.get('learning-rate', NONE)}"


def _weighting(config: Mapping[str, object]) -> str:
    layer = str(config.get("entropy-layer") or "the head")
    return _explained(config.get("weighting"), WEIGHTINGS).replace("{layer}", layer)


def _contribution(config: Mapping[str, object]) -> str:
    mode = _explained(config.get("contribution"), CONTRIBUTIONS)
    weighs = config.get("contribution") == "weight"
    return mode if weighs else f"{mode}; base weighting {config.get('base-weighting', NONE)}"


def _measured(run: RunView) -> str:
    if run.measured is None:
        return "not measured"
    return f"measured on {MEASURED_ON[run.measured.evaluated_on]}, round {run.measured.round}"


def _explained(value: object, meanings: Mapping[str, str]) -> str:
    name = str(NONE if value is None else value)
    return f"{name} – {meanings[name]}" if name in meanings else name


# -- charts ------------------------------------------------------------------------------------------


def _progress(run: RunView) -> Html:
    if not run.rounds:
        return _section("Progress", el("p", "No round was completed, so there is nothing to draw."))
    numbers = run.numbers
    measured = {record.round: record for record in run.rounds}
    accuracy = tuple(measured[n].accuracy if n in measured else None for n in numbers)
    loss = tuple(measured[n].loss if n in measured else None for n in numbers)
    return _section(
        "Progress",
        el(
            "div",
            _single("accuracy", numbers, accuracy, percent=True, bounds=(0.0, 1.0)),
            _single("loss", numbers, loss, percent=False, bounds=(0.0, float("inf"))),
            class_="pair",
        ),
    )


def _single(
    name: str, numbers: tuple[int, ...], values: Values, percent: bool, bounds: tuple[float, float]
) -> Html:
    present = [(n, value) for n, value in zip(numbers, values, strict=True) if value is not None]
    if not present:
        return el("p", f"The {name} was never measured.")
    show = _percent if percent else _number
    (first, start), (last, end) = present[0], present[-1]
    best, top = (max if percent else min)(present, key=lambda pair: pair[1])
    chart = Chart(
        id=name,
        title=f"{name.capitalize()} over rounds",
        description=f"From {show(start)} in round {first} to {show(end)} in round {last}; "
        f"best: {show(top)} in round {best}.",
        x=numbers,
        series=(Series(name, values, palette(0), label=show(end)),),
        x_label="round",
        y_label=name,
        percent=percent,
        bounds=bounds,
    )
    return _figure(chart)


def _clients(run: RunView, rows: list[Contribution]) -> Html:
    styles, labelled = _styles(rows)
    scores = _by_client(run, "score")
    weights = _by_client(run, "weight")
    return _section(
        "Clients over rounds",
        _score_chart(run, scores, styles, labelled),
        _weight_chart(run, weights, styles, labelled),
    )


def _present(values: Values) -> list[float]:
    return [value for value in values if value is not None]


def _spread(scores: Mapping[str, Values]) -> float:
    """How far the clients' scores are apart over the whole run."""
    values = [value for line in scores.values() for value in _present(line)]
    return max(values) - min(values)


def _score_chart(
    run: RunView, scores: Mapping[str, Values], styles: Mapping[str, str], labelled: Labelled
) -> Html:
    if not any(value is not None for values in scores.values() for value in values):
        return el("p", _why_no_scores(run))
    deviations = _by_client(run, "score_std")
    bands = {name: tuple(None if s is None else 2 * s for s in d) for name, d in deviations.items()}
    last = [band[-1] for band in map(_present, bands.values()) if band]
    spread = _spread(scores)
    note = "The band is two standard deviations of the Kalman filter to either side. " if last else ""
    if last and min(last) > spread:  # bands that cover the whole chart would hide the lines and tell nothing
        bands = dict.fromkeys(bands, ())
        note = (
            f"Two standard deviations of the Kalman filter, {min(last):.2f} by now, are more than all lines "
            f"are apart ({spread:.2f}): after so few rounds the ranking is a first guess. "
        )
    chart = Chart(
        id="scores",
        title="Contribution score",
        description=_ends(scores),
        x=run.numbers,
        series=tuple(
            _series(name, scores[name], styles, labelled, bands[name]) for name in _painted(styles, labelled)
        ),
        x_label="round",
        y_label="score",
        width=1000.0,
        height=320.0,
    )
    return _figure(chart, note + _few_labelled(styles, labelled))


def _why_no_scores(run: RunView) -> str:
    weighting = run.header.config.get("weighting")
    if run.header.config.get("contribution") == "off":
        return "Contribution was off in this run, so there are no scores."
    if weighting in ("uniform", "examples"):
        return f"The weighting “{weighting}” computes no scores."
    return "No round came as far as scores."


def _weight_chart(
    run: RunView, weights: Mapping[str, Values], styles: Mapping[str, str], labelled: Labelled
) -> Html:
    shares = [[v for v in column if v is not None] for column in zip(*weights.values(), strict=True)]
    if not any(shares):
        return el("p", "No round came as far as weights.")
    if all(max(share) - min(share) < 1e-9 for share in shares if share):
        return el("p", "In every round, all clients whose replies were accepted had the same weight.")
    whole = {record.round for record in run.rounds}
    equal = tuple(1 / len(s) if s and n in whole else None for n, s in zip(run.numbers, shares, strict=True))
    chart = Chart(
        id="weights",
        title="Weight in the aggregation",
        description=_ends(weights),
        x=run.numbers,
        series=(
            Series("equal shares", equal, "reference"),
            *(_series(name, weights[name], styles, labelled) for name in _painted(styles, labelled)),
        ),
        x_label="round",
        y_label="weight",
        width=1000.0,
        height=320.0,
        include=(0.0,),
    )
    note = "The dotted line is an equal share for all accepted replies. "
    return _figure(chart, note + _few_labelled(styles, labelled))


def _styles(rows: list[Contribution]) -> tuple[dict[str, str], Labelled]:
    """Colours and dashes of the clients that have a line to draw, and which of them get a label.

    Up to eight clients all have a label and their own colour. Of more, the highest and lowest rows of
    the contribution table take the first colours and have the labels.
    """
    ranked = [row.client for row in rows if row.score is not None or row.final_weight is not None]
    few = len(ranked) <= COLOURS
    named = ranked if few else ranked[:EXTREMES] + ranked[-EXTREMES:]
    others = [] if few else ranked[EXTREMES:-EXTREMES]
    return {name: palette(index) for index, name in enumerate([*named, *others])}, frozenset(named)


def _painted(styles: Mapping[str, str], labelled: Labelled) -> list[str]:
    """The clients in the order they are drawn: labelled ones on top."""
    return sorted(styles, key=lambda name: name in labelled)


def _series(
    name: str, values: Values, styles: Mapping[str, str], labelled: Labelled, band: Values = ()
) -> Series:
    if name in labelled:
        return Series(name, values, styles[name], band, label=name)
    return Series(name, values, f"{styles[name]} faint")


def _few_labelled(styles: Mapping[str, str], labelled: Labelled) -> str:
    if len(styles) == len(labelled):
        return ""
    return (
        f"Labelled are the {EXTREMES} highest and {EXTREMES} lowest of {len(styles)} clients; "
        "the table below has them all."
    )


def _by_client(run: RunView, field: str) -> dict[str, Values]:
    """A field of the client records: for each client one value a round, None where there is none."""
    values: dict[tuple[str, int], float | None] = {
        (record.client, record.round): getattr(record, field) for record in run.clients
    }
    numbers = run.numbers
    return {name: tuple(values.get((name, number)) for number in numbers) for name in run.names}


def _ends(values: Mapping[str, Values]) -> str:
    last = {
        name: next((value for value in reversed(row) if value is not None), None)
        for name, row in values.items()
    }
    present = sorted(((value, name) for name, value in last.items() if value is not None), reverse=True)
    return "Last values: " + capped([f"{name} {_number(value)}" for value, name in present], 12) + "."


def _trust(run: RunView) -> Html:
    signals = sorted({name for record in run.rounds for name in record.noise})
    if not signals:
        return Html("")
    noise = {record.round: record.noise for record in run.rounds}
    chart = Chart(
        id="trust",
        title="Noise that the server assumes in each signal",
        description="The lower a signal’s variance, the more it counts.",
        x=run.numbers,
        series=tuple(
            Series(name, tuple(noise.get(n, {}).get(name) for n in run.numbers), palette(i), label=name)
            for i, name in enumerate(signals)
        ),
        x_label="round",
        y_label="variance",
        width=560.0,
        height=220.0,
        include=(0.0,),
    )
    text = "The lower a signal’s variance, the more the server trusts it in the scores."
    return _section("Trust in the signals", el("div", _figure(chart, text), class_="small"))


def _figure(chart: Chart, note: str = "") -> Html:
    caption = el("figcaption", el("strong", chart.title), el("span", note) if note else "")
    wide = "wide" if chart.width > 600 else None
    return el("figure", caption, el("div", line_chart(chart), class_="scroll"), class_=wide)


# -- tables ------------------------------------------------------------------------------------------


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
        "Quarantined",
        "Errors",
        "Missing",
    ]
    head = [_column("Client"), *(_column(name, "number") for name in numbers)]
    body = (
        el(
            "tr",
            _name(row.client),
            _cell(_count(row.examples)),
            _cell(_count(row.rounds)),
            _cell(_plus_minus(row.score, row.std)) if scored else "",
            _cell(_number(row.mean_weight)),
            _bar(row.final_weight, largest),
            *(_cell(_number(row.signals[name])) for name in signals),
            *(_tally(count) for count in (row.quarantined, row.errors, row.missing)),
        )
        for row in rows
    )
    note = (
        "Score and last weight are those of a client’s last accepted round; “±” is one standard deviation. "
        "The mean weight is over the last half of the rounds, the mean of a signal over all, and both only "
        "over rounds in which the client had one. Examples are what the nodes report; nobody can check them."
    )
    return _section("Contribution", _table(head, body), el("p", note, class_="muted note"))


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
        else el("p", "No client stands out in this run.")
    )
    return _section("Look at these", shown, _rest(len(items)), el("p", CAVEAT, class_="caveat"))


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


def _wrong(found: tuple[Problem, ...]) -> Html:
    if not found:
        return _section("What went wrong", el("p", "Nothing: every reply came in time and was accepted."))
    body = (
        el(
            "tr",
            _cell(_rounds(problem.rounds), style="rounds"),
            el("td", problem.what),
            el("td", shorten(capped(problem.clients, MOST_NAMES), MOST_TEXT) or NONE, class_="words"),
            el("td", shorten(problem.reason, MOST_TEXT) or NONE, class_="words"),
        )
        for problem in found[:MOST_ROWS]
    )
    head = [_column(name) for name in ("Rounds", "What", "Clients", "Reason")]
    return _section("What went wrong", _table(head, body), _rest(len(found)))


def _rounds(numbers: Sequence[int]) -> str:
    return shorten(ranges(numbers), 60)


def _rest(count: int) -> Html:
    if count <= MOST_ROWS:
        return Html("")
    return el("p", f"and {count - MOST_ROWS:,} more; report.json has them all.", class_="muted note")


def _nodes(run: RunView) -> Html:
    if not run.nodes:
        return _section("Nodes", el("p", "No node had joined."))
    head = [
        _column("Node"),
        _column("Examples", "number"),
        _column("Classes", "number"),
        *(_column(name) for name in ("Input", "Device", "Versions", "Data fingerprint")),
    ]
    body = (
        el(
            "tr",
            _name(node.name),
            _cell(_count(node.examples)),
            _cell(_count(node.classes)),
            el("td", _shape(node.input_shape)),
            el("td", shorten(node.device, MOST_TEXT), class_="words"),
            el("td", shorten(_versions(node.versions), MOST_TEXT), class_="words"),
            el("td", el("code", shorten(node.fingerprint, 17), title=node.fingerprint)),
        )
        for node in run.nodes
    )
    return _section("Nodes", _table(head, body))


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


def _table(head: Sequence[Html], body: Iterable[Html]) -> Html:
    return el("div", el("table", el("thead", el("tr", *head)), el("tbody", *body)), class_="scroll")


def _name(name: str) -> Html:
    """A row's head; a short name is not broken at its hyphens."""
    style = "whole" if len(name) <= LONGEST_LABEL else "words"
    return el("th", shorten(name, MOST_TEXT), scope="row", class_=style)


def _column(name: str, style: str | None = None) -> Html:
    return el("th", name, scope="col", class_=style)


def _section(title: str, *content: Html) -> Html:
    return el("section", el("h2", title), *content)


def _cell(text: str, style: str = "number") -> Html:
    return el("td", text, class_=style)


def _tally(count: int) -> Html:
    return _cell(_count(count), "number bad" if count else "number muted")


def _bar(weight: float | None, largest: float) -> Html:
    if weight is None or largest <= 0:
        return _cell(_number(weight))
    width = f"width:{max(0.0, 100 * weight / largest):.1f}%"
    bar = el("span", el("span", style=width), class_="bar", aria_hidden="true")
    return el("td", el("span", bar, el("span", _number(weight)), class_="weight"), class_="number")


def _plus_minus(value: float | None, std: float | None) -> str:
    spread = f" ± {_number(std)}".replace(" ", NO_BREAK_SPACE) if std is not None else ""
    return _number(value) + spread


def _number(value: float | None) -> str:
    """Three decimals, or three digits where these would hide the value."""
    if value is None:
        return NONE
    return f"{value:.3f}" if value == 0 or 5e-4 <= abs(value) < 1e5 else f"{value:.2e}"


def _percent(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.1f}{NO_BREAK_SPACE}%"


def _count(value: int | None) -> str:
    return NONE if value is None else f"{value:,}"


def _shape(shape: Sequence[int]) -> str:
    return " × ".join(map(str, shape)).replace(" ", NO_BREAK_SPACE) or "scalar"


def _versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))


def _value(value: object) -> str:
    """As it stands in a TOML file."""
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)
