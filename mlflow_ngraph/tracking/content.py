"""Params, metrics and tags of lanes and studies in MLflow, computed from the record alone."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlflow_ngraph.compilers.base import FlagValue
from mlflow_ngraph.devices.fingerprint import processor
from mlflow_ngraph.execute.record import CellRecord, LaneRecord, StudyRecord
from mlflow_ngraph.metrics import CELL_METRICS, FREEDOM, LOG_ERROR
from mlflow_ngraph.study import Study, WorkloadChoice
from mlflow_ngraph.study_settings import CompilerChoice
from mlflow_ngraph.tables.sheet import markdown
from mlflow_ngraph.tables.summary import of_lane
from mlflow_ngraph.tracking import schema
from mlflow_ngraph.tracking.schema import Kind, Param, Tag
from mlflow_ngraph.verdicts import Verdict


@dataclass(frozen=True)
class MetricPoint:
    """One point of a metric."""

    name: str
    value: float
    at_ms: int
    """Unix milliseconds. Taken from the record, so that writing a point twice leaves one."""
    step: int = 0
    engine: str | None = None
    """The engine that the number belongs to."""


@dataclass(frozen=True)
class Content:
    """Content of one run, without links to other runs and models."""

    name: str
    params: Mapping[str, str]
    points: tuple[MetricPoint, ...]
    tags: Mapping[str, str]
    start_ms: int
    end_ms: int

    def digest(self) -> str:
        """Equal for equal content; a run with another digest has other content."""
        said = [self.params, [vars(point) for point in self.points], self.tags, self.start_ms, self.end_ms]
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]


def lane_content(record: StudyRecord, lane_id: str) -> Content:
    """The content of a lane run."""
    lane = record.lanes[lane_id]
    cells = [lane.cells[batch] for batch in sorted(lane.cells)]
    finished = lane.finished_at or max((cell.finished_at for cell in cells), default=lane.started_at)
    points = [*_headlines(lane, cells, _ms(finished)), *_curves(cells)]
    return Content(
        name=f"{lane.lane.label} {lane.lane.compiler_label} {lane.lane.precision} on {lane.lane.device}",
        params=_lane_params(lane),
        points=tuple(points),
        tags=_lane_tags(record, lane, cells),
        start_ms=_ms(lane.started_at),
        end_ms=_ms(finished),
    )


def study_content(record: StudyRecord) -> Content:
    """The content of a study run, but for its note and files."""
    finished = record.finished_at or max(
        (cell.finished_at for lane in record.lanes.values() for cell in lane.cells.values()),
        default=record.started_at,
    )
    return Content(
        name=f"{record.name} on {record.device}",
        params=_study_params(record),
        points=tuple(_study_points(record, finished)),
        tags=study_tags(record),
        start_ms=_ms(record.started_at),
        end_ms=_ms(finished),
    )


def study_tags(record: StudyRecord) -> dict[str, str]:
    """Tags of a study run."""
    cells = [cell for lane in record.lanes.values() for cell in lane.cells.values()]
    return {
        Tag.VERDICT: _tally(cells),
        Tag.COMPLETE: plain(all(lane.complete for lane in record.lanes.values())),
        **_common_tags(record, Kind.STUDY),
    }


def _tally(cells: Sequence[CellRecord]) -> str:
    """``ok`` if every cell is, else how many are."""
    fine = sum(cell.verdict is Verdict.OK for cell in cells)
    return str(Verdict.OK) if fine == len(cells) else f"{fine} of {len(cells)} ok"


def worst(cells: Iterable[CellRecord]) -> Verdict:
    """``ok`` if every cell is, else the worst verdict among them."""
    return max((cell.verdict for cell in cells), key=schema.SEVERITY.index, default=Verdict.OK)


def came_to_something(lane: LaneRecord) -> bool:
    """True if any cell of the lane was timed, with any verdict, or built for another device."""
    return any("throughput" in cell.metrics or cell.verdict is Verdict.BUILT for cell in lane.cells.values())


def flags_in_force(lane: LaneRecord) -> dict[str, dict[int, FlagValue]]:
    """Every flag with its value at each batch size, as far as an engine or a cell tells; else as it was asked for."""
    built = {batch for engine in lane.engines for batch in engine.batch_sizes}
    known = built | {batch for batch, cell in lane.cells.items() if cell.flags}
    by_batch = {batch: lane.flags_in_force(batch) for batch in known or lane.lane.batch_sizes}
    names = sorted({name for flags in by_batch.values() for name in flags})
    return {name: {batch: flags[name] for batch, flags in sorted(by_batch.items()) if name in flags} for name in names}


def engine_digest(files: Mapping[str, str]) -> str:
    """One sha256 for all files of an engine: of the lines ``<sha256>  <path>``, sorted by path."""
    lines = "".join(f"{digest}  {path}\n" for path, digest in sorted(files.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def _lane_params(record: LaneRecord) -> dict[str, str]:
    lane = record.lane
    values: dict[str, Any] = {
        Param.DEVICE: lane.device,
        Param.WORKLOAD: lane.workload,
        Param.MODEL: lane.label,
        Param.FAMILY: lane.family,
        Param.COMPILER: lane.compiler,
        Param.PRECISION: lane.precision,
        Param.MODE: lane.mode,
        Param.THREADS: "default" if lane.threads is None else lane.threads,
        Param.TRANSFERS: lane.transfers,
        Param.BATCH_SIZES: ",".join(map(str, lane.batch_sizes)),
    }
    if lane.compiler_label != lane.compiler:
        values[Param.COMPILER_LABEL] = lane.compiler_label
    in_force = precision_in_force(record)
    if in_force:
        values[Param.PRECISION_IN_FORCE] = in_force
    for name, by_batch in flags_in_force(record).items():
        values[schema.metric_name(Param.FLAG + name)] = _by_batch(by_batch)
    return {name: schema.cut(plain(value), schema.MAX_PARAM) for name, value in values.items()}


def precision_in_force(lane: LaneRecord) -> str:
    """The precision that took effect; empty where no engine was loaded."""
    known = {batch: cell.precision_in_force for batch, cell in lane.cells.items() if cell.precision_in_force}
    return _by_batch(known) if known else ""


def _by_batch(values: Mapping[int, FlagValue]) -> str:
    """The one value, or each value with the batch sizes at which it was in force."""
    batches: dict[str, list[int]] = {}
    for batch, value in sorted(values.items()):
        batches.setdefault(plain(value), []).append(batch)
    if len(batches) == 1:
        return next(iter(batches))
    return "; ".join(f"{text} (batch {','.join(map(str, at))})" for text, at in batches.items())


def plain(value: Any) -> str:
    """A value as the text of a param or tag."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _curves(cells: list[CellRecord]) -> list[MetricPoint]:
    """Every number of every cell, with any verdict; the curves ``batch/ok`` and ``batch/quiet`` tell which to trust."""
    points = []
    for cell in cells:
        at = _ms(cell.finished_at)
        points.append(MetricPoint(schema.CURVE_OK, float(cell.verdict is Verdict.OK), at, cell.batch))
        points.append(MetricPoint(schema.CURVE_QUIET, float(not cell.noise), at, cell.batch))
        for name, value in sorted(cell.metrics.items()):
            if math.isfinite(value) and not name.endswith((LOG_ERROR, FREEDOM)):
                points.append(MetricPoint(schema.metric_name(schema.CURVE + name), value, at, cell.batch, cell.engine))
    return points


def _headlines(lane: LaneRecord, cells: list[CellRecord], at: int) -> list[MetricPoint]:
    """Scalars for tables, sorting and search."""
    ok = [cell for cell in cells if cell.verdict is Verdict.OK and "throughput" in cell.metrics]
    values: dict[str, float] = {"cells_ok": len(ok), "cells_total": len(lane.lane.batch_sizes)}
    engines: dict[str, str | None] = {}
    """Engines of the figures that belong to one cell."""
    if ok:
        best = max(ok, key=lambda cell: cell.metrics["throughput"])
        own: dict[str, float] = {name: best.metrics[name] for name in schema.AT_BEST if name in best.metrics}
        own |= {f"{name}_at_best": best.metrics[name] for name in schema.ALSO_AT_BEST if name in best.metrics}
        own["best_batch"] = best.batch
        values.update(own)
        engines.update(dict.fromkeys(own, best.engine))
    for name, ends in schema.BEST_OVER_BATCHES.items():
        known = [cell for cell in ok if math.isfinite(cell.metrics.get(name, math.nan))]
        if known:
            choose = max if CELL_METRICS[name].better == "higher" else min
            of = choose(known, key=lambda cell: cell.metrics[name])
            own = {figure: of.metrics[figure] for figure in (name, *ends) if figure in of.metrics}
            values.update(own)
            engines.update(dict.fromkeys(own, of.engine))
    for cell in ok:
        if cell.batch == 1:
            values.update({f"{n}_b1": cell.metrics[n] for n in schema.AT_BATCH_1 if n in cell.metrics})
    for name, extreme in (("parity_cosine", min), ("parity_max_abs", max), ("parity_max_rel", max)):
        finite = [cell.metrics[name] for cell in cells if math.isfinite(cell.metrics.get(name, math.nan))]
        if finite:
            values[name] = extreme(finite)
    for name in ("compile_total_s", "engine_size_mb"):
        once = {cell.engine: cell.metrics[name] for cell in cells if cell.engine and name in cell.metrics}
        if once:
            values[name] = sum(once.values())
    return [
        MetricPoint(name, float(values[name]), at, engine=engines.get(name))
        for name in schema.HEADLINES
        if math.isfinite(values.get(name, math.nan))
    ]


def _lane_tags(record: StudyRecord, lane: LaneRecord, cells: list[CellRecord]) -> dict[str, str]:
    verdict, noisy = worst(cells), [bool(cell.noise) for cell in cells]
    # MLflow's page shows them in this order: what a person looks for first.
    tags = {
        Tag.VERDICT: str(verdict),
        Tag.LABEL: lane.lane.label,
        Tag.COMPILER: lane.lane.compiler,
        Tag.PRECISION: lane.lane.precision,
        Tag.DEVICE: lane.lane.device,
        **_common_tags(record, Kind.LANE),
        Tag.LANE_ID: lane.lane.id,
        Tag.CELLS: json.dumps({batch: lane.lane.cell(batch) for batch in lane.lane.batch_sizes}),
        Tag.WORKLOAD: lane.lane.workload,
        Tag.MODEL_CONTENT: record.content(lane.lane.workload) or "",
        Tag.FAMILY: lane.lane.family,
        Tag.COMPILER_LABEL: lane.lane.compiler_label if lane.lane.compiler_label != lane.lane.compiler else "",
        Tag.PRECISION_IN_FORCE: precision_in_force(lane),
        Tag.MODE: lane.lane.mode,
        Tag.BASELINE: record.baseline,
        Tag.REFERENCE_BY: record.reference_by(lane.lane.workload) or "",
        Tag.VERDICTS: json.dumps({cell.batch: str(cell.verdict) for cell in cells}),
        Tag.NOISE: json.dumps({cell.batch: cell.noise for cell in cells if cell.noise}) if any(noisy) else "",
        Tag.VARIABLES: "; ".join(dict.fromkeys(cell.environment for cell in cells if cell.environment)),
        Tag.REASON: ""
        if verdict is Verdict.OK
        else next((cell.reason for cell in cells if cell.verdict is verdict and cell.reason), ""),
        Tag.ENGINES: json.dumps({engine.id: engine_digest(engine.files) for engine in lane.engines}),
        Tag.ENGINE_REUSED: _reused(lane),
        Tag.COMPLETE: plain(lane.complete),
        Tag.NOTE: _lane_note(lane, cells, record.baseline),
        Tag.COLOUR: schema.colour(lane.lane.device, lane.lane.compiler, lane.lane.compiler_label),
    }
    return {name: schema.cut(value, schema.MAX_TAG) for name, value in tags.items() if value}


def _reused(lane: LaneRecord) -> str:
    """The studies that compiled the engines which this one has reused, by engine; empty where there are none."""
    studies = {engine.id: engine.reused.study_id for engine in lane.engines if engine.reused is not None}
    return json.dumps(studies) if studies else ""


def _common_tags(record: StudyRecord, kind: str) -> dict[str, str]:
    tags = {
        Tag.SCHEMA: schema.SCHEMA_VERSION,
        Tag.KIND: kind,
        Tag.STUDY_ID: record.id,
        Tag.STUDY: record.name,
        Tag.DEVICE: record.device,
        Tag.FINGERPRINT: str(record.fingerprint.get("digest", "")),
        Tag.PROCESSOR: processor(record.fingerprint),
        Tag.HOST: str(record.fingerprint.get("host", "")),
        Tag.COLOUR: schema.colour(),
        Tag.VERSIONS: json.dumps(dict(sorted(record.versions.items()))) if record.versions else "",
    }
    return {name: value for name, value in tags.items() if value}


def _lane_note(lane: LaneRecord, cells: list[CellRecord], baseline: str) -> str:
    """The cells for a reader of the run's page, with the end of stderr of those that failed."""
    lines = [markdown(of_lane(cells, baseline))]
    tails = dict.fromkeys(cell.stderr_tail.strip() for cell in cells if cell.stderr_tail.strip())
    for tail in tails:
        lines += ["", "```text", tail[-1500:].replace("```", "'''"), "```"]
    return "\n".join(lines)


def _study_params(record: StudyRecord) -> dict[str, str]:
    """Settings of the study that differ from the defaults, and its scope; workloads and compilers in their short form."""
    study = Study.model_validate(record.study)
    values = {
        **_flat(study.model_dump(mode="json", exclude_defaults=True)),
        "device": record.device,
        "workloads": ",".join(str(WorkloadChoice(**choice).parsed()) for choice in record.study["workloads"]),
        "compilers": ",".join(CompilerChoice(**choice).label for choice in record.study["compilers"]),
    }
    return {
        schema.metric_name(Param.STUDY + name): schema.cut(plain(value), schema.MAX_PARAM)
        for name, value in values.items()
    }


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested keys joined by dots, lists joined by commas."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{prefix}{name}."))
        elif isinstance(value, list | tuple):
            flat[prefix + name] = ",".join(map(plain, value))
        else:
            flat[prefix + name] = value
    return flat


def _study_points(record: StudyRecord, finished: float) -> list[MetricPoint]:
    lanes = list(record.lanes.values())
    cells = [cell for lane in lanes for cell in lane.cells.values()]
    values = {
        "cells_total": sum(len(lane.lane.batch_sizes) for lane in lanes),
        "cells_done": len(cells),
        **{f"cells_{verdict}": sum(cell.verdict is verdict for cell in cells) for verdict in Verdict},
        "cells_left_out": sum(not left_out["final"] for left_out in record.left_out.values()),
        "cells_unsteady": sum(bool(cell.noise) for cell in cells),
        "lanes_total": len(lanes),
        "lanes_done": sum(lane.complete for lane in lanes),
        "engines": sum(len(lane.engines) for lane in lanes),
        "engines_reused": sum(engine.reused is not None for lane in lanes for engine in lane.engines),
        "duration_s": finished - record.started_at,
    }
    return [MetricPoint(name, float(value), _ms(finished)) for name, value in values.items()]


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
