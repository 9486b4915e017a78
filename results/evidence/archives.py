"""Figures of archived studies."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from evidence.figures import Figure, certain, linear, select
from mlflow_ngraph.analysis import significance
from mlflow_ngraph.analysis.comparison import Comparison
from mlflow_ngraph.devices.fingerprint import summary
from mlflow_ngraph.engines import trust
from mlflow_ngraph.estimates import Estimate, exactly, quantile, satterthwaite
from mlflow_ngraph.execute import replay
from mlflow_ngraph.execute.record import StudyRecord
from mlflow_ngraph.metrics import EAGER, METRICS, TABLE
from mlflow_ngraph.tables import results
from mlflow_ngraph.tables.columns import typed
from mlflow_ngraph.tables.distinct import distinct
from mlflow_ngraph.verdicts import Verdict
from mlflow_ngraph.workloads.catalogue import paper_models
from mlflow_ngraph_archives import importing
from mlflow_ngraph_report import paper
from mlflow_ngraph_report.beside import spearman
from mlflow_ngraph_report.depth_tables import BATCHES
from mlflow_ngraph_report.environment import Machine, merged
from mlflow_ngraph_report.prepared import prepare

_QUANTITIES = {
    "throughput": "throughput", "speedup": "speed-up", "bsr": "BSR", "ase": "ASE", "cpu_reduction": "CPU use over eager",
}  # fmt: skip
"""By metric. Figures of a complement are those of one minus the metric."""
_CELL = ("cell", "device", "workload")
"""Columns that identify a cell, as for `analysis.compare.latest`."""
_SEARCHING = "tvm"
_LANE = ("study_id", "device", "workload", "compiler_label")
_SWEEP = (1, 2, 4, 8, 16)
"""Batch sizes of models that ``full`` counts in ``claims.yaml``."""
_COMPILED = (1, 32)
"""Batch sizes between which the time to compile may grow."""
_OVER_EAGER = ("speedup", "bsr", "cpu_reduction")
_OTHERS = ("tvm", "onnxruntime")
"""Compilers that others are compared with in shared rounds."""
_ANOTHER_VENDOR = "another vendor"
"""Stands among the devices where processors of two vendors were measured."""


@dataclass(frozen=True, eq=False)
class Measured:
    """Figures of archives, and what they were measured on."""

    figures: Sequence[Figure] = ()
    devices: frozenset[str] = frozenset()
    """Devices of the paper that the machines stand for, and ``another vendor`` if processors of two are among them."""
    studies: Sequence[tuple[str, ...]] = ()
    """For each study its archive, its id, its machine, its cells, and how many of them while that was not quiet."""
    frame: pd.DataFrame = field(default_factory=pd.DataFrame)
    """The tidy table, with one result for each cell."""
    machines: Sequence[Machine] = ()


def read(archives: Sequence[Path]) -> Measured:
    """Verify archives, and derive all figures from their journals again."""
    tables, studies = [], []
    records: list[StudyRecord] = []
    with tempfile.TemporaryDirectory() as temporary:
        for number, path in enumerate(archives):
            place = Path(temporary) / str(number)
            place.mkdir()
            archive = importing.check(path, trust.EVERYTHING)
            for imported in importing.unpack(archive, place):
                record = replay.load(imported.directory)
                if record.id in {known.id for known in records}:
                    continue  # two archives may have it
                tables.append(results.from_record(record))
                records.append(record)
                unquiet = str(tables[-1]["noise"].notna().sum())
                machine = summary(dict(record.fingerprint))
                studies.append((path.name, record.id, machine, str(len(tables[-1])), unquiet))
    if not tables:
        return Measured()
    frame = distinct(typed(pd.concat(tables, ignore_index=True), TABLE))
    machines = list(_machines(records, frame))
    found = figures(frame, {machine.digest: machine for machine in machines})
    shown = one_each(frame)
    shown = shown[shown["batch"].le(_SWEEP[-1]) | shown["workload"].str.startswith("block:")]
    # Searches of different lengths are of one compiler, as in the paper.
    series = shown["compiler_label"].where(shown["compiler"].ne(_SEARCHING), _SEARCHING)
    return Measured(*found, studies, shown.assign(compiler_label=series), machines)


def one_each(frame: pd.DataFrame) -> pd.DataFrame:
    """One result for each cell: of the most rounds, then of the study with the most batch sizes of it, then the newest.

    None of these depends on the figures, so that the choice favours none. An engine that was wrong once stays wrong.
    """
    sizes = frame.groupby([*_LANE])["batch"].transform("nunique")
    ordered = frame.assign(_wrong=frame["verdict"].eq(str(Verdict.PARITY_FAILED)), _sizes=sizes).sort_values(
        ["_wrong", "rounds", "_sizes", "started_at"], kind="stable", na_position="first"
    )
    chosen: pd.DataFrame = ordered.drop_duplicates(_CELL, keep="last").drop(columns=["_wrong", "_sizes"]).sort_index()
    return chosen


def _machines(records: Sequence[StudyRecord], frame: pd.DataFrame) -> Iterator[Machine]:
    """Machines as their newest studies describe them, with the versions of all."""
    newest_first = sorted(records, key=lambda record: record.started_at, reverse=True)
    for digest, devices in frame.groupby("fingerprint")["device"].unique().items():
        own = [record for record in newest_first if record.fingerprint["digest"] == digest]
        versions = merged({name: version for name, version in record.versions.items() if version} for record in own)
        yield Machine(str(digest), tuple(sorted(devices)), own[0].fingerprint, versions)


def figures(frame: pd.DataFrame, machines: Mapping[str, Machine]) -> tuple[list[Figure], frozenset[str]]:
    """Figures of the paper's models and blocks, and the devices of the paper that they stand for."""
    digests = frame.drop_duplicates("device").set_index("device")["fingerprint"]
    devices = {device: paper.paper_device(device, machines[digest]) or "" for device, digest in digests.items()}
    vendors = {device: machines[digest].fingerprint["hardware"]["cpu"]["vendor"] for device, digest in digests.items()}
    every = _of_paper(one_each(frame), devices)
    every = every[every["batch"].le(_SWEEP[-1]) | every["family"].isna()]
    both = frame[frame.groupby([*_LANE])["batch"].transform(lambda sizes: {*_COMPILED} <= {*sizes}).astype(bool)]
    ok = _measured(every)
    found = [*_own(ok), *_paired(ok), *_searches(ok), *_depths(ok), *_agreements(every)]
    found += _compile_times(_measured(_of_paper(one_each(both), devices))) if len(both) else []
    found += _between_vendors(select(found, "speed-up"), vendors)
    several = [_ANOTHER_VENDOR] * (len(set(vendors.values())) > 1)
    return found, frozenset(filter(None, [*devices.values(), *several]))


def _measured(every: pd.DataFrame) -> pd.DataFrame:
    ok: pd.DataFrame = every[every["verdict"].eq(str(Verdict.OK)) & every["throughput"].notna()].reset_index(drop=True)
    return ok


def _of_paper(frame: pd.DataFrame, devices: Mapping[Hashable, str]) -> pd.DataFrame:
    """Cells of the paper's models and blocks that are comparable with the paper's, one of each compiler."""
    families = {model.label: model.family for model in paper_models().values()}
    every = prepare(frame).every.sort_values("started_at", kind="stable")
    # Before the newest counts: a later study in bf16 takes no figure away.
    for mask, _ in paper.obstacles(every):
        every = every[~mask.loc[every.index]]
    every = every.drop_duplicates(["device", "workload", "compiler", "batch"], keep="last")
    every = every.assign(label=paper.named_by_paper(every), kind_of_device=every["device"].map(devices))
    every["family"] = every["label"].map(families)
    of_paper = every["family"].notna() | (every["block"].notna() & every["block"].eq(every["target"]))
    judged = every["baseline"].eq(EAGER) & every["compiler"].isin([*paper.COMPILERS, "torchscript"])
    found: pd.DataFrame = every[of_paper & judged & every["kind_of_device"].ne("")]
    return found


def _about(row: Mapping[Hashable, Any]) -> dict[str, Any]:
    block = not isinstance(row["family"], str)
    return {
        "device": row["kind_of_device"], "machine": row["device"], "compiler": row["compiler"],
        "label": "" if block else row["label"], "family": "" if block else row["family"],
        "batches": (int(row["batch"]),), "block": row["target"] if block else "",
        "width": int(row["width"]) if block else 0, "depth": int(row["depth"]) if block else 0, "study": row["study_id"],
    }  # fmt: skip


def _own(ok: pd.DataFrame) -> Iterator[Figure]:
    """Figures with an interval of their own, and the CPU use with the error of its mean over rounds."""
    for metric, quantity in _QUANTITIES.items():
        parts = significance.figures(ok, metric)
        for place, row in enumerate(ok.to_dict("records")):
            by_definition = (metric in _OVER_EAGER and row["compiler"] == EAGER) or (
                metric in ("bsr", "ase") and row["batch"] == 1
            )
            if not by_definition and math.isfinite(parts.log[place]):
                yield Figure(quantity, parts.take(place), **_about(row))
    for row in ok[ok["cpu_percent"] > 0].to_dict("records"):
        error = row["cpu_percent_std"] / row["cpu_percent"] / math.sqrt(row["rounds"])
        part = Estimate(np.log(row["cpu_percent"]), np.array(error), np.array(row["rounds"] - 1.0))
        yield Figure("CPU [%]", part, **_about(row))


def _paired(ok: pd.DataFrame) -> Iterator[Figure]:
    """Throughput over another compiler's, round by round where rounds are shared."""
    comparison = Comparison(ok, METRICS["throughput"])
    alike = ["device", "workload", "batch", "threads"]
    places = ok[[*alike, "compiler"]].reset_index(names="place")
    for other in _OTHERS:
        pairs = places[~places["compiler"].isin([other, EAGER])].merge(places[places["compiler"] == other], on=alike)
        ratios = comparison.ratios(pairs["place_x"], pairs["place_y"])
        for number, place in enumerate(pairs["place_x"]):
            yield Figure(f"throughput over {other}", ratios.take(number), **_about(ok.loc[place].to_dict()))


def _compile_times(ok: pd.DataFrame) -> Iterator[Figure]:
    """Growth of the compile time within a study, with the error of its mean over models: each engine is compiled once."""
    models = ok[
        ok["family"].notna() & ok["compile_total_s"].notna() & ~(ok["built_beside"] > 0) & ok["compiler"].ne(EAGER)
    ]
    first, last = _COMPILED
    for _, own in models.groupby(["device", "compiler"]):
        seconds = own.pivot_table("compile_total_s", "label", "batch")
        logs = np.log(seconds[last] / seconds[first]).dropna() if {*_COMPILED} <= {*seconds} else pd.Series(dtype=float)
        logs = logs[logs != 0]  # one engine for both tells nothing
        if len(logs) > 2:
            part = Estimate(np.array(logs.mean()), np.array(logs.sem()), np.array(len(logs) - 1.0))
            about = {**_about(own.iloc[0].to_dict()), "label": f"mean of {len(logs)} models", "batches": ()}
            yield Figure("compile time growth", part, **about)


def _searches(ok: pd.DataFrame) -> Iterator[Figure]:
    """Hours of TVM's searches."""
    for row in ok[ok["family"].notna() & ok["tune_s"].notna() & ok["compiler"].eq(_SEARCHING)].to_dict("records"):
        yield Figure("search [h]", exactly(row["tune_s"] / 3600), **_about(row))


def _depths(ok: pd.DataFrame) -> Iterator[Figure]:
    """Slope of the speed-up over one to six blocks, and the speed-up of six over that of one, as in tables VII and VIII."""
    blocks = ok[ok["family"].isna() & ok["speedup"].notna() & ok["compiler"].ne(EAGER) & ok["batch"].isin(BATCHES)]
    for _, cells in blocks.groupby(["device", "series", "target", "width", "batch"]):
        own = cells.drop_duplicates("depth").sort_values("depth")
        if not {1, 6} <= set(own["depth"]):
            continue
        parts, depths = significance.figures(own, "speedup"), own["depth"].to_numpy(float)
        centred = depths - depths.mean()
        shares = centred / float(centred @ centred) * parts.value
        variances = (shares * parts.error) ** 2
        slope = Estimate(shares.sum(), np.sqrt(variances.sum()), satterthwaite(variances, parts.freedom))
        about = {**_about(own.iloc[0].to_dict()), "depth": 0}
        yield Figure("depth slope", slope, scale=linear, **about)
        yield Figure("depth retention", parts.take(len(depths) - 1).over(parts.take(0)), **about)


def _agreements(every: pd.DataFrame) -> Iterator[Figure]:
    """One for each cell whose outputs agree with eager execution's, zero for each whose do not."""
    outcomes = {str(Verdict.OK): 1.0, str(Verdict.PARITY_FAILED): 0.0}
    judged = every[every["verdict"].isin(list(outcomes)) & every["compiler"].ne(EAGER)]
    for row in judged.to_dict("records"):
        yield Figure("outputs agree", certain(outcomes[row["verdict"]]), scale=linear, **_about(row))


def _between_vendors(speedups: Sequence[Figure], vendors: Mapping[str, str]) -> Iterator[Figure]:
    """Rank correlation of the speed-ups of two machines whose processors are of two vendors."""
    by_machine: dict[str, dict[tuple[Any, ...], Figure]] = {}
    for one in speedups:
        by_machine.setdefault(one.machine, {})[one.key("device", "machine")] = one
    for (name, here), (other, there) in combinations(sorted(by_machine.items()), 2):
        common = [cell for cell in here if cell in there and vendors[name] != vendors[other]]
        found = spearman([here[cell].value for cell in common], [there[cell].value for cell in common])
        if found is not None and found.certain:
            error = (math.atanh(found.high) - math.atanh(found.value)) / quantile(np.inf)
            part = Estimate(np.array(math.atanh(found.value)), np.array(error), np.array(np.inf))
            yield Figure("rank correlation", part, machine=f"{name} and {other}, {len(common)} cells", scale=np.tanh)
