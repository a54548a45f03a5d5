"""The section on client drift: over frequencies, over layers, and whether filtering is likely to help."""

from collections.abc import Callable
from statistics import fmean

from common.bands import BANDS
from common.ledger import ClientRecord, DriftRecord, LayerDrift
from server_app.report.drift_view import CONCENTRATED, FLAT, NOT_FLAT, judge, last_trial
from server_app.report.markup import Html, el, join
from server_app.report.parts import (
    MOST_ROWS,
    capped,
    cell,
    column,
    cut_off,
    extremes,
    figure,
    in_digits,
    in_percent,
    label_note,
    row_name,
    section,
    table,
)
from server_app.report.run_view import RunView
from server_app.report.svg import Chart, Series, Values, palette

SOURCES = {
    "updates": "the nodes’ updates, divided by their steps and learning rate",
    "gradients": "the nodes’ full local gradients at the model they received",
}
LayerNumber = Callable[[LayerDrift], float | None]


def drift(run: RunView) -> Html:
    """The whole section; nothing for a run without drift records and without what nodes report of them."""
    told = [record for record in run.clients if record.energy_removed or record.band_energies]
    if not run.drift and not told:
        return Html("")
    return section(
        "Drift between clients",
        el(
            "div",
            *([_judgement(run), _spectrum(run), _layers(run), _alike(run)] if run.drift else []),
            _first_steps(run, told),
            class_="drift",
        ),
    )


def _judgement(run: RunView) -> Html:
    found, tried, last = judge(run.drift), last_trial(run.drift), run.drift[-1]
    share = rule = ""
    if found.share is not None:
        rule = (
            f" By our rule of thumb drift is concentrated from {in_percent(CONCENTRATED)} on, twice a flat "
            f"share, and flat below {in_percent(NOT_FLAT)}; the share is a mean over the rounds. The rule "
            "knows nothing of signal that all clients share in the low band, which filtering takes away too: "
            "the layers below tell of that."
        )
        share = (
            f" Band 0, the lowest tenth of the frequencies, holds {in_percent(found.share)} of the "
            f"distance between clients; of a flat spectrum it would hold {in_percent(FLAT)}."
        )
    compared = f"What is compared: {SOURCES[last.source]}{', filtered' if last.filtered else ''}."
    trial = ""
    if tried is not None:
        trial = (
            f" Tried on round {tried.round}, the filter (FFT where the run has none) lowers the relative "
            f"divergence in {tried.falls} of the {tried.tensors} tensors that it changes. Where it does not, "
            "the low band may be common signal rather than drift."
        )
    return join(
        el("p", el("strong", found.text), share),
        el("p", compared + rule + trial, class_="muted note"),
    )


def _spectrum(run: RunView) -> Html:
    measured = [record for record in run.drift if record.dist]
    if not measured:
        return el("p", "There is no drift spectrum: " + _why_no_spectrum(run.drift[-1]))
    return el("div", _spectrum_chart(measured), _band_chart(run), class_="pair")


def _why_no_spectrum(record: DriftRecord) -> str:
    if record.clients < 2:
        return "no round had two clients to compare."
    return f"no tensor is long enough for {BANDS} bands."


def _spectrum_chart(measured: list[DriftRecord]) -> Html:
    first, last = measured[0], measured[-1]
    earlier = [_spectrum_line(first, 5)] if first is not last else []
    chart = Chart(
        id="drift-spectrum",
        title="Drift spectrum",
        description=f"Round {last.round}, from band 0 to band {BANDS - 1}: "
        + ", ".join(map(in_digits, last.dist))
        + ".",
        x=tuple(range(len(last.dist))),
        series=(*earlier, _spectrum_line(last, 0, last.std)),
        x_label="frequency band, from low to high",
        y_label="distance",
        include=(0.0,),
        bounds=(0.0, float("inf")),
    )
    note = (
        "Mean distance between two clients in each band. The band around the line is one standard deviation."
    )
    return figure(chart, f"{note} {_left_out(last)}".rstrip())


def _spectrum_line(record: DriftRecord, colour: int, band: Values = ()) -> Series:
    name = f"round {record.round}"
    return Series(name, record.dist, palette(colour), band, label=name)


def _left_out(record: DriftRecord) -> str:
    if not record.left_out:
        return ""
    return f"Left out, too short for {BANDS} bands: {len(record.left_out)} of {len(record.layers)} tensors."


def _band_chart(run: RunView) -> Html:
    by_round = {record.round: record.dist for record in run.drift if record.dist}
    lines = [tuple(by_round[n][m] if n in by_round else None for n in run.numbers) for m in range(BANDS)]
    others = [Series(f"band {m}", lines[m], "s6 faint") for m in range(1, BANDS - 1)]
    last = by_round[max(by_round)]
    chart = Chart(
        id="drift-bands",
        title="Drift in each band over rounds",
        description=f"Band 0 ends at {in_digits(last[0])}, the others between {in_digits(min(last[1:]))} and "
        f"{in_digits(max(last[1:]))}.",
        x=run.numbers,
        series=(
            *others,
            Series(f"band {BANDS - 1}", lines[-1], palette(5), label=f"band {BANDS - 1}"),
            Series("band 0", lines[0], palette(1), label="band 0"),
        ),
        x_label="round",
        y_label="distance",
        include=(0.0,),
        bounds=(0.0, float("inf")),
    )
    return figure(chart, f"Band 0 holds the lowest frequencies; bands 1 to {BANDS - 2} are the faint lines.")


def _layers(run: RunView) -> Html:
    last = run.drift[-1]
    if last.clients < 2:
        return Html("")
    styles = _styles(last)
    charts = el(
        "div",
        _layer_chart(
            run, styles, "drift-relative", "Relative divergence", "divergence", lambda layer: layer.relative
        ),
        _layer_chart(
            run, styles, "drift-cosine", "Mean cosine between clients", "cosine", lambda layer: layer.cosine
        ),
        class_="pair",
    )
    return join(charts, _layer_table(last))


def _styles(record: DriftRecord) -> dict[str, tuple[str, bool]]:
    """Of each tensor the style of its line, and whether it has a label."""
    ranked = sorted(
        (layer for layer in record.layers if layer.relative is not None),
        key=lambda layer: -(layer.relative or 0),
    )
    names = [layer.name for layer in ranked]
    colour = {name: palette(index) for index, name in enumerate(extremes(names))}
    faint = {name: ("s6 faint", False) for name in names if name not in colour}
    return faint | {name: (style, True) for name, style in colour.items()}


def _layer_chart(
    run: RunView, styles: dict[str, tuple[str, bool]], id_: str, title: str, y_label: str, number: LayerNumber
) -> Html:
    rounds = {record.round: {layer.name: number(layer) for layer in record.layers} for record in run.drift}
    values = {name: tuple(rounds.get(n, {}).get(name) for n in run.numbers) for name in styles}
    values = {name: line for name, line in values.items() if any(v is not None for v in line)}
    if not values:
        return el("p", f"{title}: not defined in any round.")
    series = tuple(
        Series(name, line, styles[name][0], label=name.removesuffix(".weight") if styles[name][1] else "")
        for name, line in values.items()
    )
    ends = [f"{name} {in_digits(rounds[run.drift[-1].round][name])}" for name in values if styles[name][1]]
    chart = Chart(
        id=id_,
        title=title,
        description="Last values: " + capped(ends, 12) + ".",
        x=run.numbers,
        series=series,
        x_label="round",
        y_label=y_label,
        include=(0.0,),
    )
    labelled = sum(label for _, label in styles.values())
    return figure(chart, label_note(labelled, len(styles), "tensors"))


def _layer_table(record: DriftRecord) -> Html:
    tried = any(layer.filtered_relative is not None for layer in record.layers)
    after = [column("after the filter", "number")] if tried else []
    head = [
        column("Tensor"),
        column("Relative divergence", "number"),
        *after,
        column("Mean cosine", "number"),
        *after,
        column("Absolute divergence", "number"),
    ]
    body = (
        el(
            "tr",
            row_name(layer.name),
            cell(in_digits(layer.relative)),
            cell(in_digits(layer.filtered_relative)) if tried else "",
            cell(in_digits(layer.cosine)),
            cell(in_digits(layer.filtered_cosine)) if tried else "",
            cell(in_digits(layer.absolute)),
        )
        for layer in record.layers[:MOST_ROWS]
    )
    note = (
        f"Round {record.round}. The absolute divergence is the mean distance to the clients’ mean; the "
        "relative one is divided by the norm of that mean. Any filter lowers the absolute one, so that alone "
        "proves nothing."
    )
    return join(table(head, body), cut_off(len(record.layers)), el("p", note, class_="muted note"))


def _alike(run: RunView) -> Html:
    values = {record.round: record.cka for record in run.drift if record.cka is not None}
    if not values:
        return Html("")
    chart = Chart(
        id="drift-cka",
        title="Likeness of the local models (CKA)",
        description=f"It ends at {in_digits(values[max(values)])} in round {max(values)}.",
        x=run.numbers,
        series=(
            Series(
                "CKA",
                tuple(values.get(n) for n in run.numbers),
                palette(2),
                label=in_digits(values[max(values)]),
            ),
        ),
        x_label="round",
        y_label="CKA",
        width=560.0,
        height=220.0,
        include=(0.0, 1.0),
    )
    note = (
        "Linear CKA of the features before the head, on the server’s own rows, mean over pairs. 1 is alike."
    )
    return el("div", figure(chart, note), class_="small")


def _first_steps(run: RunView, told: list[ClientRecord]) -> Html:
    """What nodes report of the first local step, before the filter: each client's last words."""
    last = {record.client: record for record in told}
    names = [name for name in run.names if name in last]
    if not names:
        return Html("")
    head = [
        column("Client"),
        column("Round", "number"),
        column("Removed by the filter", "number"),
        column("Least to most of a tensor", "number"),
        column("Energy in band 0", "number"),
    ]
    body = (_first_step(last[name]) for name in names[:MOST_ROWS])
    note = (
        "As the nodes report it of a round’s first step: the share of the gradient’s squared norm that the "
        "filter removes, mean over the tensors that it changes, and the share of the lowest tenth of the "
        "frequencies."
    )
    return join(table(head, body), cut_off(len(names)), el("p", note, class_="muted note"))


def _first_step(record: ClientRecord) -> Html:
    removed, energies = record.energy_removed, record.band_energies
    total = sum(energies)
    return el(
        "tr",
        row_name(record.client),
        cell(str(record.round)),
        cell(in_percent(fmean(removed) if removed else None)),
        cell(f"{in_percent(min(removed))} to {in_percent(max(removed))}" if removed else in_percent(None)),
        cell(in_percent(energies[0] / total if total > 0 else None)),
    )
