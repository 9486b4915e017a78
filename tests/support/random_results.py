"""Random tables of results, and what the verbs say differently of one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from mlflow_ngraph.analysis.compare import compare
from mlflow_ngraph.analysis.findings import NEEDED, Finding, find
from mlflow_ngraph.analysis.ranking import EngineQuestion, rank
from mlflow_ngraph.analysis.recommend import recommend
from mlflow_ngraph.measure import statistics
from mlflow_ngraph.metrics import FOREIGN, uneven_load
from mlflow_ngraph.objectives import objective
from mlflow_ngraph.ui import answers
from mlflow_ngraph.ui.query import Query
from mlflow_ngraph_engines import champion
from tests.support.tidy import cells

COMPILERS = ("identity", "onnxruntime", "openvino", "torch-compile")
OBJECTIVES = ("throughput", "latency")
_GROUP, _CELL = ["workload", "device"], ["compiler_label", "batch"]


def table(rng: np.random.Generator) -> pd.DataFrame:
    """The results of a study or two: quiet or not, of few or many rounds, with ties, holes, and cells that went wrong."""
    own, common = 10 ** rng.uniform(-2.7, -0.7, 2)
    rounds, batches = int(rng.integers(2, 21)), sorted(rng.choice([1, 2, 4, 8], int(rng.integers(1, 4)), replace=False))
    compilers = COMPILERS[: int(rng.integers(2, 5))]
    spread, growth = rng.choice([0.0, 0.02, 0.5], 2)
    raced, sessions = rng.random() < 0.3, rng.random() < 0.3
    rows = []
    for workload in ("timm:a", "timm:b")[: int(rng.integers(1, 3))]:
        for device in ("xeon", "orin")[: int(rng.integers(1, 3))]:
            speeds = {name: float(rng.normal(0, spread)) for name in compilers}
            sizes = {name: float(rng.choice([10.0, 10.1, 20.0])) for name in compilers}
            shared = rng.normal(0, common, rounds)
            for batch in batches:
                study, several = f"{device}-{0 if raced else int(rng.integers(0, 2))}", rng.random() < 0.3
                shared = shared if raced else rng.normal(0, common, rounds)
                for number, name in enumerate(compilers):
                    speed = 5 + speeds[name] + growth * np.log(batch) + rng.normal(0, 0.01)
                    logs = speed + shared + rng.normal(0, own, rounds)
                    session = number % 2 if sessions else 0
                    keys = [
                        f"{part}.{place}"
                        for part in ({0, 1} if name == "identity" else {session})
                        for place in range(rounds)
                    ]
                    known = {key if raced else f"{key}@{batch}": float(-logs[int(key[2:])]) for key in keys}
                    rows.append({
                        "study_id": study, "workload": workload, "device": device, "compiler": name, "batch": int(batch),
                        "logs": logs, "log_medians": json.dumps(known if rng.random() < 0.9 else {}),
                        "model_id": f"m-{workload}-{device}-{name}" + (f"-{batch}" if several else ""),
                        FOREIGN: float(rng.choice([0.0, 20.0, 40.0], p=[0.7, 0.15, 0.15])),
                        "engine_size_mb": sizes[name], "peak_memory_mb": float(rng.choice([100.0, 200.0])),
                        "verdict": str(rng.choice(["ok", "timeout", "parity_failed", "left_out"], p=[0.9, 0.04, 0.03, 0.03])),
                    })  # fmt: skip
    columns = {name: [row[name] for row in rows] for name in rows[0] if name != "logs"}
    frame = cells(**columns, compiler_label=columns["compiler"], label=[name[-1] for name in columns["workload"]])
    frame["engine"], frame["run_id"] = frame["model_id"], "r"
    frame["started_at"] = 1.76e9 + frame["study_id"].str[-1].astype(float)
    base = {(row["workload"], row["device"], row["batch"]): row for row in rows if row["compiler"] == "identity"}
    for place, row in enumerate(rows):
        figure = statistics.typical(np.exp(row["logs"] + rng.normal(0, 0.02)))
        eager = base[row["workload"], row["device"], row["batch"]]
        load = max(row[FOREIGN], eager[FOREIGN]) if row is not eager else 0.0
        gain = statistics.trimmed_mean(row["logs"] - eager["logs"]).beside(uneven_load(load))
        if rng.random() < 0.15:
            figure = statistics.typical(np.exp(row["logs"][:1]))
        latency = 1e3 * row["batch"] / figure.value
        for name, value, estimate in (
            ("throughput", figure.value, figure),
            ("speedup", gain.value, gain),
            ("latency_p50_ms", latency, figure),
        ):
            reach = (np.asarray(estimate.interval()) / estimate.value)[:: -1 if name == "latency_p50_ms" else 1]
            ends = value * (reach if name != "latency_p50_ms" else 1 / reach)
            parts = (value, *ends, estimate.error, estimate.freedom)
            for suffix, part in zip(("", "_ci_low", "_ci_high", "_log_se", "_df"), parts, strict=True):
                frame.loc[place, name + suffix] = float(part)
    untried = frame["verdict"] == "left_out"
    frame.loc[untried, [name for name in frame if str(name).startswith(("throughput", "speedup", "latency"))]] = np.nan
    frame.loc[untried, "log_medians"] = None
    # What no verb looks at costs each of them time.
    kept = {*NEEDED, *EngineQuestion().columns(), *EngineQuestion("latency").columns(), "flags", "run_id"}
    return frame[[name for name in frame if name in kept]].assign(lane_run_id="l", experiment_id="1", experiment="e")


def disagreements(frame: pd.DataFrame, asked: str) -> Iterator[str]:
    """What two verbs say differently of the best cell, of ties, of what is undecided, or of an interval."""
    metric = objective(asked).name
    if not frame[metric].notna().any():
        return
    told, about = recommend(frame, objective=asked)
    yield from _marks("compare", told, compare(frame, rows=_GROUP, columns=_CELL, metric=metric).about["values"])
    for column in ("precision", "compiler_label"):
        merged = compare(frame, rows=_GROUP, columns=[column], metric=metric, best=_GROUP)
        yield from _merged(told, merged.about["values"], column)
    yield from _merged(
        told,
        compare(frame, rows=_GROUP, columns=["compiler_label"], metric=metric, best=[*_GROUP, "compiler_label"]).about[
            "values"
        ],
        "compiler_label",
    )
    yield from _costs(told, frame, metric)
    found = {(answer["workload"], answer["device"]): answer for answer in about["answers"]}
    for (workload, device), own in frame.groupby(_GROUP, sort=False):
        rows = told[(told["workload"] == workload) & (told["device"] == device)]
        if len(rows):
            yield from _pulled(rows, found[workload, device], own, EngineQuestion(asked))
            yield from _promoted(rows, found[workload, device], own, metric)
    if asked == "throughput":
        yield from _found(found, find(frame))
    batch = int(frame.loc[frame[metric].notna(), "batch"].iloc[-1])
    page = answers.comparison(frame, Query({}, metric, batch=batch))["table"]
    entries = [{**row, "batch": batch, "ci_low": row["low"], "ci_high": row["high"]} for row in page]
    yield from _marks("page", recommend(frame, objective=asked, batch_sizes=[batch]).table, entries)


def _marks(verb: str, told: pd.DataFrame, entries: list[dict[str, Any]]) -> Iterator[str]:
    """What a table marks as best and tied, and its intervals."""
    known = {_name(entry): entry for entry in entries}
    for row in told.to_dict("records"):
        entry = known[_name(row)]
        if (entry["best"], entry["tied"]) != (row["rank"] == 1, row["tied"]):
            yield f"{verb}: best, tied of {_name(row)}: {entry['best']}, {entry['tied']}, not {row['rank'] == 1}, {row['tied']}"
        if not _alike(row, entry):
            yield f"{verb}: another interval of {_name(row)}"


def _merged(told: pd.DataFrame, entries: list[dict[str, Any]], column: str) -> Iterator[str]:
    """The cells that stand for all that fall together, and whether one of those is as good."""
    best = told[told["rank"] == 1]
    shown = {entry["cell"] for entry in entries if entry["best"]}
    if shown != set(best["cell"]):
        yield f"compare: {sorted(shown)} stand for all, not {sorted(best['cell'])}"
    names = [*_GROUP, column]
    tied = {tuple(row[name] for name in names) for row in told[told["tied"]].to_dict("records")}
    tied -= {tuple(row[name] for name in names) for row in best.to_dict("records")}
    marked = {tuple(entry[name] for name in names) for entry in entries if entry["tied"]}
    if not tied <= marked:  # what cannot rank may be marked besides
        yield f"compare: {sorted(tied - marked)} are not marked as ties"


def _costs(told: pd.DataFrame, frame: pd.DataFrame, metric: str) -> Iterator[str]:
    """What others cost, against their ratios to the compiler that leads, at its batch size."""
    leads = told[told["rank"] == 1]
    for compiler in leads["compiler_label"].unique():
        over = ("compiler_label", compiler)
        ratios = compare(frame, rows=_GROUP, columns=_CELL, metric=metric, relative_to=over).about["values"]
        known = {entry["cell"]: entry for entry in ratios}
        for lead in leads[leads["compiler_label"] == compiler].to_dict("records"):
            beside = told[(told[[*_GROUP, "batch"]] == [lead[name] for name in [*_GROUP, "batch"]]).all(axis=1)]
            for row in beside[beside["cell"] != lead["cell"]].to_dict("records"):
                ends = (row["loss_ci_low"], row["loss_ci_high"])
                low, high = ends if metric.startswith("latency") else (-ends[1], -ends[0])
                if not _alike({"ci_low": 1 + low, "ci_high": 1 + high}, known[row["cell"]]):
                    yield f"recommend and compare: another ratio of {row['cell']} to {lead['cell']}"


def _pulled(rows: pd.DataFrame, answer: dict[str, Any], own: pd.DataFrame, question: EngineQuestion) -> Iterator[str]:
    """The engine that would be brought, and what keeps it back."""
    ranking = rank(own, question)
    first = ranking.candidates[0]
    if first.row["cell"] != rows.iloc[0]["cell"]:
        yield f"pull: {first.name}, not {rows.iloc[0]['cell']}"
    if [rival.to_plain() for rival in ranking.rivals] != answer["rivals"]:
        yield f"pull: other rivals of {rows.iloc[0]['cell']}"
    ends = (first.figure(question.metric) or (None, None, None))[1:]
    if not _alike(dict(zip(("ci_low", "ci_high"), ends, strict=True)), rows.iloc[0]):
        yield f"pull: another interval of {first.name}"


def _promoted(rows: pd.DataFrame, answer: dict[str, Any], own: pd.DataFrame, metric: str) -> Iterator[str]:
    """Whether the engine that is recommended may become the champion."""
    engine = own["model_id"] == rows.iloc[0]["model_id"]
    cell, rivals = champion.rivals(own[engine], own[~engine], metric)
    if bool(rivals) == answer["decided"]:
        yield f"promote: {len(rivals)} rivals of {cell['cell']}, where recommend says {answer['said']}"


def _found(told: dict[tuple[str, str], dict[str, Any]], findings: list[Finding]) -> Iterator[str]:
    """What findings call undecided: their titles name the model."""
    expected = {answer["said"].lower() for answer in told.values() if answer["rivals"] and answer["cell"]}
    said = {one.text.lower() for one in findings if one.kind == "undecided"}
    yield from (f"findings alone: {text}" for text in said if not any(whole.endswith(text) for whole in expected))
    yield from (f"recommend alone: {whole}" for whole in expected if not any(map(whole.endswith, said)))


def _name(row: dict[Any, Any]) -> tuple[str, ...]:
    return tuple(str(row[name]) for name in (*_GROUP, *_CELL))


def _alike(one: Any, other: Any) -> bool:
    ours, theirs = (np.array([part["ci_low"], part["ci_high"]], float) for part in (one, other))
    return bool(np.allclose(ours, theirs, rtol=1e-9, equal_nan=True))
