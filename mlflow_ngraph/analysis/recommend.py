"""Recommendation: cells ranked by an objective under limits, per device or for a fleet, and their Pareto front."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mlflow_ngraph import objectives
from mlflow_ngraph.analysis import between_studies, decision, fleet_choice, rivals, significance
from mlflow_ngraph.analysis.between_studies import Between, Machine
from mlflow_ngraph.analysis.compare import latest, quieter
from mlflow_ngraph.analysis.comparison import Comparison
from mlflow_ngraph.analysis.described import Described
from mlflow_ngraph.analysis.selection import FILTER_COLUMNS, Selection
from mlflow_ngraph.analysis.serving_rates import AT_RATE, AT_RATE_METRIC
from mlflow_ngraph.errors import UsageError, require_known
from mlflow_ngraph.estimates import Estimate
from mlflow_ngraph.metrics import METRICS, Metric, is_complement, with_estimates
from mlflow_ngraph.objectives import OBJECTIVES, Limit
from mlflow_ngraph.tables import baselines
from mlflow_ngraph.tables.columns import metrics_of
from mlflow_ngraph.text import counted
from mlflow_ngraph.verdicts import Verdict

Fleet = Literal["maximin", "geomean"]
_AT_RATE = "latency-at-rate"
"""Objective that needs a rate."""
_PULL = ("mlflow-ngraph", "engine", "pull")
Floats = NDArray[np.float64]

COLUMNS = (
    "device", "workload", "label", "rank", "best", "tied", "may_lead", "on_front", "compiler", "compiler_label", "flags", "precision",
    "precision_in_force", "mode", "threads", "batch", "value", "ci_low", "ci_high", "loss", "loss_ci_low",
    "loss_ci_high", "score", "worst_device", "unsteady", "noise", "variables", "cell", "study_id", "run_id", "model_id", "pull",
)  # fmt: skip
"""Columns of a recommendation; metrics of the front follow them."""


def recommend(
    frame: pd.DataFrame,
    *,
    objective: str = "throughput",
    limits: Sequence[Limit] = (),
    fleet: Fleet | None = None,
    front: Sequence[str] = (),
    selection: Selection | None = None,
    **filters: Sequence[Any] | None,
) -> Described:
    """Recommend a cell for each workload and device, with ties and losses.

    The latest study of each cell counts. Only ``ok`` cells are recommended. There is no recommendation where another
    cell could be better by more than `objectives.AS_GOOD`. Limits apply to measured numbers, not to the ends of their
    intervals.

    Parameters
    ----------
    frame : pd.DataFrame
        The tidy table of `results.load`; for ``latency-at-rate`` with the column that `serving_rates.add` makes.
    objective : str
        A key of `OBJECTIVES`, ``latency-at-rate``, or a metric.
    limits : Sequence[Limit]
        Limits on metrics.
    fleet : Fleet | None
        One choice (compiler with flags, precision, mode, batch size) for all devices of each workload: ``maximin``
        makes the worst relative performance of a device as good as possible, ``geomean`` the geometric mean over
        devices. Relative performance is that against the best that the device could run within the limits.
    front : Sequence[str]
        Metrics or keys of `OBJECTIVES` whose Pareto front is marked.
    selection, **filters : Selection | None, Sequence[Any] | None
        Cells to consider; ``filters`` are the fields of a `Selection` by name.

    Returns
    -------
    Described
        One row per cell that keeps all limits (with ``fleet``: whose choice does on all devices), the best first, with
        the columns of `COLUMNS`; docs/how-to/decide.md explains them. ``about`` has: ``answers`` (a sentence for each
        workload and device), ``undecided`` (those without a ``best``, with their ``rivals``), ``nothing`` (workloads
        and devices without a candidate, with reasons), ``between_studies`` (variance between studies of a machine),
        ``objective``, ``metric``, ``baseline`` (of ratios), ``unit``, ``better``, ``limits``, ``fleet`` and ``front``.

    Raises
    ------
    UnknownNameError
        There is no such objective or metric, or a filter names what the table does not have.
    UsageError
        Neither high nor low is better; no cell has the metric; a metric refers to several baselines; or no cell fits
        all filters.
    """
    given: dict[str, Any] = {name: tuple(value) for name, value in filters.items() if value}
    asked = replace(selection or Selection(), **given)
    asked.check(frame)
    metrics = _metrics(frame)
    metric = _objective(objective, metrics)
    shown = [OBJECTIVES.get(name, name) for name in front]
    require_known("metric", [*shown, *(limit.metric for limit in limits)], metrics)
    needed = _columns([metric, "throughput", "speedup", *shown, *(limit.metric for limit in limits)])
    fitting_filters = asked.of(frame[[name for name in frame.columns if name in needed]])
    chosen = latest(fitting_filters).reset_index(drop=True)
    _check_measured(chosen, metrics[metric])
    asked_for = list(dict.fromkeys([metric, *shown, *(limit.metric for limit in limits)]))
    baselines.check_one(chosen, [metrics[name] for name in asked_for])
    compared = Comparison(chosen, metrics[metric])
    fitting, why = _fitting(compared, limits)
    timed = metric in METRICS and METRICS[metric].by_round
    between = between_studies.of_machines(frame, set(chosen["device"])) if timed else {}
    kept = np.logical_and.reduce([np.ones(len(chosen), bool), *(limit.kept(chosen) for limit in limits)])
    noisy = compared.unranked & (kept | compared.skipped)
    if fleet is None:
        found = list(decision.answers(compared, fitting | noisy))
        answers = [answer for answer, _ in found]
        ranked = _per_device(compared, [places for _, places in found if len(places)], between)
        table = _described(ranked, chosen, metric, shown, metrics)
    else:
        candidates = chosen[fitting].reset_index(drop=True)
        ranked = fleet_choice.ranked(candidates, metrics[metric], chosen, fleet)
        table = _described(ranked, candidates, metric, shown, metrics)
        answers = list(decision.of_fleet(table, candidates, chosen[noisy], metrics[metric], chosen, fleet))
    open_ = {(answer.workload, answer.device) for answer in answers if not answer.decided}
    cells = zip(table["workload"], table["device"], strict=True)
    table["best"] &= np.array([not open_ & {(workload, device), (workload, None)} for workload, device in cells], bool)
    told = [answer.to_plain() for answer in answers]
    about = {
        "objective": objective,
        "metric": metric,
        "baseline": next((label for name in asked_for for label in baselines.of(chosen, metrics[name])), None),
        "unit": metrics[metric].unit,
        "better": metrics[metric].better,
        "limits": [str(limit) for limit in limits],
        "fleet": fleet,
        "front": shown,
        "nothing": _nothing(chosen, table, why, fleet),
        "answers": told,
        "undecided": [answer for answer in told if not answer["decided"]],
        "quieter": quieter(fitting_filters),
        "between_studies": [known.to_plain(machine) for machine, known in between.items()],
    }
    return Described(table, about)


def _metrics(frame: pd.DataFrame) -> dict[str, Metric]:
    return {**metrics_of(frame), **({AT_RATE: AT_RATE_METRIC} if AT_RATE in frame.columns else {})}


def _columns(metrics: Sequence[str]) -> set[str]:
    return {
        *COLUMNS,
        *rivals.needed(metrics[0]),
        *FILTER_COLUMNS,
        *with_estimates(metrics),
        "fingerprint",
        "verdict",
        "started_at",
        "finished_at",
    }


def _objective(name: str, metrics: Mapping[str, Metric]) -> str:
    if name == _AT_RATE and AT_RATE not in metrics:
        raise UsageError(f"{_AT_RATE} needs a rate, and studies with arrivals")
    return objectives.objective(name, metrics, {_AT_RATE: AT_RATE}).name


def _check_measured(chosen: pd.DataFrame, metric: Metric) -> None:
    name, numbers = metric.name, chosen[metric.name].dropna()
    if numbers.empty:
        meters = "; mlflow-ngraph doctor shows which meters a machine has"
        needed = name.startswith(("energy", "power")) or any(word in metric.meaning for word in ("energy", "power"))
        raise UsageError(f"none of these {len(chosen)} cells has {name}{meters if needed else ''}")
    if metric.estimated and not is_complement(name) and (numbers <= 0).any():
        raise UsageError(
            f"{name} is zero or negative in {counted(int((numbers <= 0).sum()), 'cell')}: only positive figures can be "
            "ranked, by their ratios; compare shows them"
        )


def _fitting(compared: Comparison, limits: Sequence[Limit]) -> tuple[NDArray[np.bool_], list[tuple[str, ...]]]:
    """Mark the candidates, and give each excluded cell's reason."""
    chosen, metric = compared.frame, compared.metric.name
    ok = (chosen["verdict"] == str(Verdict.OK)).to_numpy(bool)
    has, ranks = chosen[metric].notna().to_numpy(bool), compared.ranks
    kept = [limit.kept(chosen) for limit in limits]
    why: list[tuple[str, ...]] = []
    for place, verdict in enumerate(chosen["verdict"]):
        if not ok[place]:
            why.append((str(verdict),))
            continue
        broken = [f"not {limit}" for limit, mask in zip(limits, kept, strict=True) if not mask[place]]
        alone = has[place] and not ranks[place]
        why.append((*broken, *([] if has[place] else [f"no {metric}"]), *(["without an interval"] if alone else [])))
    fitting: NDArray[np.bool_] = np.array([not reasons for reasons in why], bool)
    return fitting, why


def _per_device(
    compared: Comparison, groups: Sequence[NDArray[np.int_]], between: Mapping[Machine, Between]
) -> pd.DataFrame:
    """Rank candidates within each workload and device, with ties, losses, and possible leaders of another study."""
    parts = []
    machines = between_studies.machines(compared.frame)
    for places in groups:
        first = np.arange(len(places)) == 0
        ratios = compared.ratios(places, np.full(len(places), places[0]))
        tied = compared.tied(int(places[0]), places)
        hours = between_studies.widened(ratios, [machines[place] for place in places.tolist()], between)
        may_lead = compared.could_beat(hours) & ~(tied | compared.left(places, places) | first)
        cost = losses(ratios, compared.numbers[places], compared.metric)
        parts.append(
            {"place": places, "rank": np.arange(1, len(places) + 1), "tied": tied, "may_lead": may_lead, **cost}
        )
    names = ("place", "rank", "tied", "may_lead", "loss", "loss_ci_low", "loss_ci_high")
    empty = np.zeros(0, int)
    table: pd.DataFrame = pd.DataFrame(
        {name: np.concatenate([empty, *(part[name] for part in parts)]) for name in names}
    )
    return table


def losses(ratios: Estimate, values: Floats, metric: Metric) -> dict[str, Floats]:
    """Loss relative to the best, as a share; zero for the best."""
    with np.errstate(divide="ignore", invalid="ignore"):
        plain = values / values[0]
    tested = np.isfinite(ratios.error) & (not is_complement(metric.name))
    relative = np.where(tested, ratios.value, plain)
    low, high = (np.where(tested, end, np.nan) for end in ratios.interval())
    if metric.better == "lower":
        return {"loss": relative - 1, "loss_ci_low": low - 1, "loss_ci_high": high - 1}
    return {"loss": 1 - relative, "loss_ci_low": 1 - high, "loss_ci_high": 1 - low}


def on_front(values: Floats, lower: Sequence[bool]) -> NDArray[np.bool_]:
    """Mark rows on the Pareto front. Rows with NaN are not on it.

    ``values`` has a row per candidate and a column per metric; ``lower`` marks metrics for which lower is better.
    """
    known = ~np.isnan(values).any(axis=1)
    turned = np.where(np.array(lower, bool), values, -values)
    front = np.zeros(len(values), bool)
    for place in np.flatnonzero(known):
        others = turned[known]
        beaten = (others <= turned[place]).all(axis=1) & (others < turned[place]).any(axis=1)
        front[place] = not beaten.any()
    return front


def _described(
    ranked: pd.DataFrame, candidates: pd.DataFrame, metric: str, shown: Sequence[str], metrics: Mapping[str, Metric]
) -> pd.DataFrame:
    table = candidates.iloc[ranked["place"].to_numpy(int)].reset_index(drop=True)
    for name in ranked.columns.drop("place"):
        table[name] = ranked[name].to_numpy()
    for name, value in (("score", np.nan), ("worst_device", None), ("may_lead", False)):
        if name not in table:
            table[name] = value
    table["rank"] = table["rank"].astype(int)
    table["best"] = table["rank"] == 1
    for name in ("tied", "may_lead"):
        table[name] = table[name].astype(bool)
    table["value"] = table[metric]
    table["ci_low"], table["ci_high"] = significance.interval(table, metric)
    table["on_front"] = False
    if shown:
        values, front = table[list(shown)].to_numpy(float, na_value=np.nan), np.zeros(len(table), bool)
        lower = [metrics[name].better == "lower" for name in shown]
        for places in table.groupby(["workload", "device"], sort=False, dropna=False).indices.values():
            front[places] = on_front(values[places], lower)
        table["on_front"] = front
    table["pull"] = [
        "" if pd.isna(model) or not model else f"{shlex.join([*_PULL, f'models:/{model}'])}{_consent(compiler)}"
        for model, compiler in zip(table["model_id"], table["compiler"], strict=True)
    ]
    described: pd.DataFrame = table[[*COLUMNS, *(name for name in shown if name not in COLUMNS)]]
    return described


def _consent(compiler: str) -> str:
    """Option that a pull needs on a machine without rules, where the engines of a compiler are programs."""
    from mlflow_ngraph.engines import compatibility

    return " --run" if compatibility.program(compiler) else ""


def _nothing(
    chosen: pd.DataFrame, table: pd.DataFrame, why: Sequence[tuple[str, ...]], fleet: Fleet | None
) -> list[dict[str, Any]]:
    """Workloads and devices without a choice, with the number of cells by reason."""
    known = set(zip(table["workload"], table["device"], strict=True))
    missing = []
    for inside in chosen.groupby(["workload", "device"], sort=False).indices.values():
        workload, device = (chosen[name].iloc[int(inside[0])] for name in ("workload", "device"))
        if (workload, device) in known:
            continue
        reasons = Counter(reason for place in np.asarray(inside, int) for reason in why[place])
        if fleet is not None and not all(why[place] for place in np.asarray(inside, int)):
            reasons["no choice that all devices can run"] += 1
        missing.append(
            {
                "device": str(device),
                "workload": str(workload),
                "label": str(chosen["label"].iloc[int(inside[0])]),
                "cells": len(inside),
                "refused": dict(reasons.most_common()),
            }
        )
    return missing
