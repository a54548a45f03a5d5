"""The charts of the HTML report: progress, clients over rounds, trust in the signals."""

from collections.abc import Mapping

from common.traits import is_scored
from server_app.report.contribution import Contribution
from server_app.report.markup import Html, el
from server_app.report.parts import capped, extremes, figure, in_digits, in_percent, label_note, section
from server_app.report.run_view import RunView
from server_app.report.svg import Chart, Series, Values, palette

Labelled = frozenset[str]


def progress(run: RunView) -> Html:
    """Accuracy and loss over the rounds."""
    if not run.rounds:
        return section("Progress", el("p", "No round was completed, so there is nothing to draw."))
    numbers = run.numbers
    measured = {record.round: record for record in run.rounds}
    accuracy = tuple(measured[n].accuracy if n in measured else None for n in numbers)
    loss = tuple(measured[n].loss if n in measured else None for n in numbers)
    return section(
        "Progress",
        el(
            "div",
            _single("accuracy", numbers, accuracy, percent=True, bounds=(0.0, 1.0)),
            _single("loss", numbers, loss, percent=False, bounds=(0.0, float("inf"))),
            class_="pair",
        ),
    )


def clients_over_rounds(run: RunView, rows: list[Contribution]) -> Html:
    """Scores and weights of all clients; ``rows`` stand in the order of the contribution table."""
    styles, labelled = _styles(rows)
    scores = _by_client(run, "score")
    weights = _by_client(run, "weight")
    return section(
        "Clients over rounds",
        _score_chart(run, scores, styles, labelled),
        _weight_chart(run, weights, styles, labelled),
    )


def trust(run: RunView) -> Html:
    """The noise that the Kalman filter assumes in each signal; nothing for a run without one."""
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
    return section("Trust in the signals", el("div", figure(chart, text), class_="small"))


def _single(
    name: str, numbers: tuple[int, ...], values: Values, percent: bool, bounds: tuple[float, float]
) -> Html:
    present = [(n, value) for n, value in zip(numbers, values, strict=True) if value is not None]
    if not present:
        return el("p", f"The {name} was never measured.")
    show = in_percent if percent else in_digits
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
    return figure(chart)


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
    # Bands that cover the whole chart would hide the lines and tell nothing; but one line is apart from none.
    if last and min(last) > spread and not run.site:
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
    return figure(chart, note + _few_labelled(styles, labelled))


def _why_no_scores(run: RunView) -> str:
    weighting = run.header.config.get("weighting")
    if run.header.config.get("contribution") == "off":
        return "Contribution was off in this run, so there are no scores."
    if not is_scored(weighting):
        return f"The weighting “{weighting}” computes no scores."
    return "No round came as far as scores."


def _weight_chart(
    run: RunView, weights: Mapping[str, Values], styles: Mapping[str, str], labelled: Labelled
) -> Html:
    shares = [[v for v in column if v is not None] for column in zip(*weights.values(), strict=True)]
    if not any(shares):
        return el("p", "No round came as far as weights.")
    if not run.site and all(max(share) - min(share) < 1e-9 for share in shares if share):
        return el("p", "In every round, all clients whose replies were accepted had the same weight.")
    whole = {record.round: record.accepted for record in run.rounds}
    equal: Values = tuple(
        1 / (whole[n] if run.site else len(share)) if share and whole.get(n) else None
        for n, share in zip(run.numbers, shares, strict=True)
    )
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
    return figure(chart, note + _few_labelled(styles, labelled))


def _styles(rows: list[Contribution]) -> tuple[dict[str, str], Labelled]:
    """Colours and dashes of the clients that have a line to draw, and which of them get a label.

    Up to eight clients all have a label and their own colour. Of more, the highest and lowest rows of
    the contribution table take the first colours and have the labels.
    """
    ranked = [row.client for row in rows if row.score is not None or row.final_weight is not None]
    named = extremes(ranked)
    others = [name for name in ranked if name not in named]
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
    return label_note(len(labelled), len(styles), "clients; the table below has them all")


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
    return "Last values: " + capped([f"{name} {in_digits(value)}" for value, name in present], 12) + "."
