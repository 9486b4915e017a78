"""``mlflow-ngraph recommend``: best engines per model and device or for a fleet, under limits; costs of others."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import click

from mlflow_ngraph import objectives
from mlflow_ngraph.cli import costs, output, writing
from mlflow_ngraph.cli.filters import Asked, bound_options, filter_options
from mlflow_ngraph.cli.kept import KeptCommand
from mlflow_ngraph.cli.lists import FiniteRange, items
from mlflow_ngraph.errors import NO_GOOD_ANSWER, TrackingError, UsageError
from mlflow_ngraph.metrics import METRICS, metric_title
from mlflow_ngraph.objectives import BOUNDS, Limit
from mlflow_ngraph.tables import remarks
from mlflow_ngraph.tables.sheet import Cell, Column, Part, Sheet, faint, number, prose
from mlflow_ngraph.text import (
    NO_INTERVAL,
    UNSTEADY_MARK,
    counted,
    csv_table,
    json_records,
    missing,
    plain,
    rounded,
    unsteady_mark,
)

if TYPE_CHECKING:
    import pandas as pd

FORMATS = ("table", "markdown", "csv", "json")
_SHOWN = 50
"""Tables on a terminal; more models and devices have their line."""
_ENDINGS = {".md": "markdown", ".csv": "csv", ".json": "json"}
_FRONT = "throughput,latency,cpu,memory"
_ALTERNATIVES = 3
_CONTRADICTED = "costs follow from shared rounds, which differ so much that they contradict the figures of all calls"


@click.command(cls=KeptCommand)
@filter_options
@click.option("--objective", metavar="NAME", default="throughput", show_default=True,
              help="throughput, latency, latency-at-rate, cpu, memory, energy, size, or any metric.")  # fmt: skip
@click.option("--rate", type=FiniteRange(min=0, min_open=True), metavar="N",
              help="Samples per second that arrive, for latency-at-rate.")  # fmt: skip
@bound_options(*BOUNDS)
@click.option("--max", "most", multiple=True, metavar="METRIC=N,...", help="Any metric at most.")
@click.option("--min", "least", multiple=True, metavar="METRIC=N,...", help="Any metric at least.")
@click.option("--fleet", is_flag=False, flag_value="maximin", metavar="[maximin|geomean]",
              help="One choice for all devices: the worst relative performance, or the geometric mean, as high as possible.")  # fmt: skip
@click.option("--front", is_flag=False, flag_value=_FRONT, metavar="[METRIC,...]",
              help=f"Show the Pareto front over these (by itself: {_FRONT}).")  # fmt: skip
@click.option("--alternatives", type=click.IntRange(min=0), default=_ALTERNATIVES, show_default=True,
              help="How many other choices to show, with what they cost.")  # fmt: skip
@click.option("--format", "form", metavar="|".join(FORMATS), help="How to print (default: table).")
@click.option(
    "--output", "target", metavar="FILE", help="Write there instead of printing; its ending tells the format."
)
@output.json_option
def recommend(
    objective: str,
    rate: float | None,
    most: Sequence[str],
    least: Sequence[str],
    fleet: str | None,
    front: str | None,
    alternatives: int,
    form: str | None,
    target: str | None,
    as_json: bool,
    **given: Any,
) -> int:
    """Recommend compiler, flags, precision and batch size for each workload and device.

    Shows what cannot be told from the best, what other choices cost, and the command that pulls the winner. Where another
    cell could be better by more than 3 %, for all that the rounds tell, nothing is recommended and the exit code is 3; so
    it is where nothing keeps all limits.
    """
    bounds = {name: given.pop(name) for name in BOUNDS}
    asked = Asked(given)
    form = writing.form("json" if as_json else form, target, FORMATS, _ENDINGS)
    if fleet not in (None, "maximin", "geomean"):
        raise UsageError(f"fleet: expected maximin or geomean, found {fleet!r}")
    if (objective == "latency-at-rate") != (rate is not None):
        raise UsageError("latency-at-rate and --rate belong together: say both, or none")
    limits = _limits(bounds, most, least)

    from mlflow_ngraph.analysis import recommend as recommending
    from mlflow_ngraph.analysis import serving_rates

    selection = asked.selection()
    frame = asked.read()
    if rate is not None:
        selection.check(frame)
        frame = serving_rates.add(frame, serving_rates.read(asked.uris, selection.of(frame)), rate)
    table, about = recommending.recommend(
        frame,
        objective=objective,
        limits=limits,
        fleet=fleet,  # type: ignore[arg-type] # checked above
        front=items(front),
        selection=selection,
    )
    _withdraw_engines(table, asked.uris)
    if form == "csv":
        writing.write(csv_table(table), target)
    elif form == "json":
        writing.write(output.json_text({**about, "choices": json_records(table)}), target)
    else:
        shown = None if target or form != "table" else _SHOWN
        writing.give(form, target, *_parts(table, about, alternatives, shown))
    return NO_GOOD_ANSWER if about["undecided"] or table.empty else 0


def _withdraw_engines(table: pd.DataFrame, uris: Sequence[str] | None) -> None:
    """Take away the command that would pull a winner whose engine is deleted."""
    logged = table.index[table["best"] & (table["pull"] != "")]
    if logged.empty:
        return

    from mlflow_ngraph.tracking import connection, download

    for place in logged:
        for uri in uris or [connection.resolve_uri(None)]:
            with suppress(TrackingError):
                download.of_id(str(table.loc[place, "model_id"]), uri)
                break
        else:
            table.loc[place, "pull"] = ""


def _limits(bounds: dict[str, float | None], most: Sequence[str], least: Sequence[str]) -> list[Limit]:
    limits = objectives.limits(bounds)
    for bound, texts in (("max", most), ("min", least)):
        for text in items(texts):
            metric, _, number = text.partition("=")
            try:
                value = float(number)
            except ValueError:
                raise UsageError(f"{bound}: expected METRIC=NUMBER, found {text!r}") from None
            if not math.isfinite(value):
                raise UsageError(f"{bound}: expected a finite number, found {text!r}")
            limits.append(Limit(metric.strip(), bound, value))  # type: ignore[arg-type] # max or min
    return limits


def _parts(table: pd.DataFrame, about: dict[str, Any], alternatives: int, most: int | None) -> Iterator[Part]:
    """The answers, and for each workload and device the best, its ties, some alternatives, and the front; ``most`` of them."""
    for answer in about["answers"]:
        yield Cell(answer["said"], tone="heading" if answer["decided"] else "warning")
    columns = _columns(about)
    pairs: dict[tuple[Any, Any], list[dict[Any, Any]]] = {}
    for row in table.to_dict("records"):
        pairs.setdefault((row["workload"], row["device"]), []).append(row)
    for inside in list(pairs.values())[:most]:
        chosen = [row for row in inside if row["rank"] <= 1 + alternatives or row["on_front"] or row["tied"]]
        rows = sorted(chosen, key=itemgetter("rank"))
        yield Sheet(f"{rows[0]['label']} on {rows[0]['device']}", columns, [_row(row, about) for row in rows])
        if behind := len(inside) - len(rows):
            yield Cell(f"{counted(behind, 'cell')} behind these: --alternatives {len(inside)}", tone="faint")
        if any(_apart(row, rows[0], about) for row in rows[1:]):
            yield Cell(_CONTRADICTED, tone="faint")
        yield from (Cell(str(row["pull"]), tone="command") for row in inside if row["best"] and row["pull"])
    if most is not None and len(pairs) > most:
        yield Cell(
            f"{counted(len(pairs) - most, 'table')} more: choose with --workloads, or write all with --output FILE",
            tone="faint",
        )
    yield from faint(filter(None, (*_notes(table, about), about["quieter"])))


def _columns(about: dict[str, Any]) -> list[Column]:
    unit = "" if about["unit"] == "1" else f" [{about['unit']}]"
    return [
        *(number(""), prose("compiler"), Column("precision"), number("batch")),
        number(f"{metric_title(about['metric'], _over(about, about['metric']))}{unit}"),
        *(number("95 % interval", spare=1), number("costs"), number("costs [95 %]", spare=2)),
        *(map(number, (f"score ({about['fleet']})", "worst on")) if about["fleet"] else ()),
        *(number(metric_title(name, _over(about, name))) for name in about["front"]),
    ]


def _over(about: dict[str, Any], metric: str) -> str | None:
    """The baseline that a metric of the table refers to; None of one that refers to none."""
    return about["baseline"] if metric in METRICS and METRICS[metric].of_baseline else None


def _row(row: dict[str, Any], about: dict[str, Any]) -> list[str]:
    mark = "*" if row["best"] else "?" if row["rank"] == 1 else "≈" if row["tied"] else "°" if row["may_lead"] else ""
    mark += "^" if row["on_front"] else ""
    cost, ends = ("", "") if row["rank"] == 1 else costs.said(row, about)
    interval = "" if missing(row["ci_low"]) else f"{rounded(row['ci_low'])} to {rounded(row['ci_high'])}"
    texts = [
        mark,
        str(row["compiler_label"]),
        _precision(row),
        str(row["batch"]),
        unsteady_mark(row["unsteady"], about["metric"]) + rounded(row["value"]),
        interval,
        cost,
        ends,
    ]
    score = [f"{row['score']:.3f}", str(row["worst_device"])] if about["fleet"] else []
    return [*texts, *score, *(rounded(plain(row[name])) for name in about["front"])]


def _apart(row: dict[str, Any], best: dict[str, Any], about: dict[str, Any]) -> bool:
    """True if the cost, which follows from shared rounds, is not that of the figures beside it."""
    if about["fleet"] or missing(row["loss"]) or not min(row["value"], best["value"]) > 0:
        return False
    kept = 1 + row["loss"] if about["better"] == "lower" else 1 - row["loss"]
    return kept > 0 and remarks.apart(row["value"] / best["value"] / kept)


def _precision(row: dict[str, Any]) -> str:
    in_force = row["precision_in_force"]
    return remarks.precisions(str(row["precision"]), None if missing(in_force) else str(in_force))


def _notes(table: pd.DataFrame, about: dict[str, Any]) -> Iterator[str]:
    limits = f", with {', '.join(about['limits'])}" if about["limits"] else ""
    yield f"objective: {about['objective']} ({about['metric']}, {about['better']} is better){limits}"
    if about["baseline"]:
        yield f"speed-ups and other ratios are over {about['baseline']}"
    if about["fleet"] == "maximin":
        yield "one choice for all devices: its worst performance relative to what a device could run is as high as possible"
    elif about["fleet"]:
        yield "one choice for all devices: the geometric mean of performance relative to what a device could run is highest"
    if about["undecided"]:
        yield "? looks best, and may not be: nothing is recommended there"
    noisy = table.loc[[about["metric"] in str(names).split(",") for names in table["unsteady"]], "noise"].dropna()
    if len(noisy):
        yield f"{UNSTEADY_MARK} unsteady, because the machine was not quiet: {noisy.value_counts().index[0]}"
    for setting in table["variables"].dropna().unique():
        yield remarks.environment_warning(setting)
    yield from _without_interval(table)
    if bool(table["tied"].any()):
        yield "≈ cannot be told from the first of its table: see docs/explanation/comparing.md"
    yield from _between(table, about)
    yield from _without_engine(table)
    if about["front"]:
        yield "^ is on the Pareto front: nothing else is as good in all of these and better in one"
    if about["nothing"]:
        yield _nothing(about)


def _without_interval(table: pd.DataFrame) -> Iterator[str]:
    """Note on figures that have no interval beside others that have one."""
    if table["ci_low"].isna().any() and table["ci_low"].notna().any():
        yield f"a figure may have {NO_INTERVAL}"


def _without_engine(table: pd.DataFrame) -> Iterator[str]:
    labels = table.loc[table["best"] & table["model_id"].notna() & (table["pull"] == ""), "label"]
    if len(labels):
        yield f"the engine of {', '.join(dict.fromkeys(labels))} is deleted: measuring it again builds another"


def _between(table: pd.DataFrame, about: dict[str, Any]) -> Iterator[str]:
    """Note on the variance between studies, where earlier ones have shown it."""
    if bool(table["may_lead"].any()):
        yield "° is behind in these rounds, and may lead when it is measured again:"
    for known in about["between_studies"]:
        figures, studies = counted(known["figures"], "cell"), counted(known["studies"], "study", "studies")
        yield (
            f"from study to study, speed-ups on {known['device']} differ by {100 * known['deviation']:.2g} % (standard deviation) "
            f"beside what their intervals say ({figures} in {studies})"
        )


def _nothing(about: dict[str, Any]) -> str:
    """Groups without any answer, each with the reason."""
    reasons = "; ".join(
        f"{pair['label']} on {pair['device']} ({', '.join(f'{count} {reason}' for reason, count in pair['refused'].items())})"
        for pair in about["nothing"]
    )
    return f"{'nothing keeps all limits' if about['limits'] else 'there is no answer'}: {reasons}"
