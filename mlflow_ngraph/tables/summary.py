"""The final table of a study: a row per cell, notes on baseline, intervals and noise; also the table of one lane."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mlflow_ngraph.devices.fingerprint import processor
from mlflow_ngraph.devices.registry import misfit
from mlflow_ngraph.metrics import EAGER, METRICS, TOUCHED, metric_title
from mlflow_ngraph.tables.remarks import apart, environment_warning, fallback_nodes, fallback_note, precisions
from mlflow_ngraph.tables.sheet import Cell, Sheet, Tone, number, prose
from mlflow_ngraph.text import UNSTEADY_MARK, counted, decimals, rounded
from mlflow_ngraph.verdicts import Verdict

if TYPE_CHECKING:
    from mlflow_ngraph.execute.record import CellRecord, LaneRecord, StudyRecord


_OF_LANE = {
    "throughput": "throughput [samples/s]",
    "latency_p50_ms": "p50 [ms]",
    "latency_p99_ms": "p99 [ms]",
    "speedup": "speed-up",
    "parity_cosine": "cosine",
}
_ROUNDS_APART = "its rounds differ so much that p50, the median of all calls, contradicts samples/s and speed-up, which are means over rounds"


@dataclass(frozen=True)
class SummaryRow:
    """One cell of the final table; missing numbers are None."""

    workload: str
    """The short name."""
    compiler: str
    """With the flags that were given."""
    precision: str
    batch: int
    verdict: Verdict
    reason: str
    noise: str
    """Cause of contamination; absolute figures are marked."""
    unsteady: tuple[str, ...]
    """Contaminated metrics."""
    variables: str
    """Environment variables that may favour one runtime. Speed-ups may be affected, too."""
    throughput: float | None
    """Samples per second."""
    throughput_ci: tuple[float, float] | None
    """Ends of the 95 % interval."""
    latency_p50_ms: float | None
    latency_p99_ms: float | None
    baseline: str
    """Label of the speed-up's baseline."""
    speedup: float | None
    speedup_ci: tuple[float, float] | None
    """Ends of the 95 % interval."""
    cpu_percent: float | None
    """CPU use of the whole machine."""
    parity_cosine: float | None
    compile_total_s: float | None
    """Includes the export; of the study that compiled the engine, where it was reused."""
    compiled_by: str | None
    """Id of that study; None where this study compiled the engine."""
    built_beside: int
    """Largest number of other preparations or compilations running concurrently."""
    precision_in_force: str | None
    fallback_nodes: int
    """Nodes run by another provider than requested, if the compiler reports it."""
    cell: str
    """Id of the cell, as `mlflow-ngraph results explain` takes it."""
    best: bool = False
    """Fastest ``ok`` cell of its workload, batch size and precision."""

    @property
    def rounds_apart(self) -> bool:
        """Rounds differ so much that the median call and the throughput imply different times."""
        if not self.throughput or not self.latency_p50_ms:
            return False
        return apart(self.latency_p50_ms * self.throughput / (1e3 * self.batch))

    @property
    def compile_text(self) -> str:
        """Compile time in seconds. Reuse is noted; "≤" marks concurrent compilation."""
        if self.compile_total_s is None:
            return ""
        return f"{'≤ ' if self.built_beside else ''}{rounded(self.compile_total_s, 3)}{' (reused)' if self.compiled_by else ''}"


def summary_rows(record: StudyRecord) -> list[SummaryRow]:
    """A row for each cell with a verdict.

    Workloads keep the order of the study, and batch sizes ascend. Rows of a batch size are sorted by speed-up, those
    not ``ok`` last.
    """
    groups: dict[tuple[str, str, int], list[SummaryRow]] = {}
    for lane in record.lanes.values():
        for cell in lane.cells.values():
            row = _row(lane, cell, record.baseline)
            groups.setdefault((row.workload, row.precision, row.batch), []).append(row)
    order = {name: index for index, name in enumerate(dict.fromkeys(workload for workload, _, _ in groups))}
    ranked = sorted(groups.items(), key=lambda item: (order[item[0][0]], item[0][1], item[0][2]))
    return [row for _, rows in ranked for row in _ranked(rows)]


def references(record: StudyRecord) -> list[str]:
    """Name the references of speed-ups and parity, workloads without a baseline, and a processor that does not fit the
    profile.
    """
    known = {ref: record.reference_by(ref) for ref in record.workloads}
    several = len(set(known.values())) > 1
    labels = {lane.lane.workload: lane.lane.label for lane in record.lanes.values()}
    by: dict[str, list[str]] = {}
    for ref, who in known.items():
        if who is not None:
            by.setdefault(who, []).append(labels.get(ref, ref))
    those = [f"{who} ({', '.join(labels)})" if several else who for who, labels in by.items()]
    cells = [cell for lane in record.lanes.values() for cell in lane.cells.values()]
    said = [
        *([f"speed-ups are over {record.baseline}"] if any("speedup" in cell.metrics for cell in cells) else []),
        *([f"outputs were compared with those of {', '.join(those)}"] if those else []),
    ]
    other = misfit(record.device, processor(record.fingerprint))
    return [*(["; ".join(said)] if said else []), *_without_baseline(record), *([other] if other else [])]


def wide_intervals(record: StudyRecord) -> str:
    """Sentence about intervals wider than the study requested; empty if there are none."""
    if record.study.get("repetitions") != "auto":
        return ""
    wanted = record.study["adaptive"]["within"]
    rows = [row for row in summary_rows(record) if row.verdict is Verdict.OK and row.throughput is not None]
    reached = sorted(
        math.sqrt(high / low) - 1 for row in rows if row.throughput_ci for low, high in [row.throughput_ci]
    )
    far = [reach for reach in reached if reach > wanted]
    unknown = len(rows) - len(reached)
    said = [
        *([f"reached ± {_span(far)} % in {counted(len(far), 'cell')}"] if far else []),
        *([f"{counted(unknown, 'cell has', 'cells have')} no interval"] if unknown else []),
    ]
    return f"intervals of throughput: wanted ± {100 * wanted:g} %, {', '.join(said)}" if said else ""


def _span(shares: Sequence[float]) -> str:
    """Ends of ascending shares in percent; one number where they round alike."""
    return " to ".join(dict.fromkeys(rounded(100 * share, 2) for share in (shares[0], shares[-1])))


def _without_baseline(record: StudyRecord) -> Iterator[str]:
    measured: dict[tuple[str, str], dict[str, str]] = {}
    for lane in record.lanes.values():
        if any("throughput" in cell.metrics for cell in lane.cells.values()):
            found = measured.setdefault((lane.lane.workload, lane.lane.precision), {})
            found.setdefault(lane.lane.compiler_label, lane.lane.label)
    several = len({precision for _, precision in measured}) > 1
    for (_, precision), lanes in measured.items():
        if record.baseline not in lanes:
            other, label = next(iter(lanes.items()))
            where = f"{label} in {precision}" if several else label
            yield (
                f"{where}: no speed-up: {record.baseline} does not run it; name another lane, as with `baseline: {other}`"
            )


def sheet(record: StudyRecord) -> Sheet:
    """Every cell, the best first, with counts of verdicts and notes about contamination."""
    rows = summary_rows(record)
    asked = {row.precision for row in rows}
    variables = dict.fromkeys(row.variables for row in rows if row.variables)
    several = len(asked) > 1 or any(row.precision_in_force not in (None, *asked) for row in rows)
    speedup = "speed-up" if record.baseline == EAGER else metric_title("speed-up", record.baseline)
    return Sheet(
        "",
        [
            *(prose("workload"), number("batch"), prose("compiler")),
            *(["precision"] if several else []),
            *(number(f"{speedup} [95 %]"), number("samples/s [95 %]", spare=1), number("p50 ms")),
            *(number("p99 ms", spare=2), number("CPU %", spare=4), number("compile s", spare=3)),
            *(number("cosine", spare=5), "verdict"),
        ],
        [list(_cells(row, several)) for row in rows],
        [
            _tally(rows),
            *references(record),
            *filter(None, [wide_intervals(record)]),
            *(Cell(line, tone="warning") for line in (*_noise(rows), *map(environment_warning, variables))),
        ],
        one="cell",
    )


def of_lane(cells: Iterable[CellRecord], baseline: str) -> Sheet:
    """Cells of one lane."""

    def figures(cell: CellRecord) -> Iterator[str]:
        for name in _OF_LANE:
            text = rounded(cell.metrics.get(name))
            yield f"{UNSTEADY_MARK}{text}" if text and name in cell.unsteady else text

    titles = (metric_title(title, baseline if METRICS[name].of_baseline else None) for name, title in _OF_LANE.items())
    rows = [(cell.batch, *figures(cell), Cell(str(cell.verdict), note=cell.remarks)) for cell in cells]
    return Sheet("", [number("batch"), *map(number, titles), "verdict"], rows, one="cell")


def _cells(row: SummaryRow, several: bool) -> Iterator[Cell]:
    usual: Tone = "good" if row.best else "" if row.verdict is Verdict.OK else "warning"
    best: Tone = "best" if row.best else usual
    mark = UNSTEADY_MARK if row.noise else ""
    about = "; ".join(filter(None, (row.reason, fallback_note(row.fallback_nodes))))
    yield Cell(row.workload, tone=usual)
    yield Cell(str(row.batch), tone=usual)
    yield Cell(row.compiler, tone=best)
    if several:
        yield Cell(precisions(row.precision, row.precision_in_force), tone=usual)
    speedup_mark = UNSTEADY_MARK if "speedup" in row.unsteady else ""
    yield Cell(_marked(speedup_mark, row.speedup), _interval(row.speedup_ci), tone=best)
    yield Cell(_marked(mark, row.throughput), _interval(row.throughput_ci), tone=best)
    yield Cell(_marked(mark, row.latency_p50_ms), note=_ROUNDS_APART if row.rounds_apart else "", tone=usual)
    for figure in (row.latency_p99_ms, row.cpu_percent):
        yield Cell(_marked(mark, figure), tone=usual)
    yield Cell(row.compile_text, tone=usual)
    yield Cell(decimals(row.parity_cosine, 6), tone=usual)
    yield Cell(str(row.verdict), note=about, tone=usual)


def _marked(mark: str, figure: float | None) -> str:
    return "" if figure is None else f"{mark}{rounded(figure, 3)}"


def _interval(ends: tuple[float, float] | None) -> str:
    """Interval as text; empty for exact figures, such as the baseline's speed-up."""
    return "" if ends is None or ends[0] == ends[1] else f"[{rounded(ends[0], 3)}, {rounded(ends[1], 3)}]"


def _tally(rows: Sequence[SummaryRow]) -> Cell:
    counts = Counter(str(row.verdict) for row in rows)
    fine = counts.pop(str(Verdict.OK), 0)
    others = "".join(f", {count} {verdict}" for verdict, count in counts.most_common())
    return Cell(f"{len(rows)} cells: {fine} ok{others}", tone="warning" if others else "good")


def _noise(rows: Sequence[SummaryRow]) -> Iterator[str]:
    """Explain the mark, and name the most frequent cause."""
    reasons = Counter(row.noise for row in rows if row.noise)
    if reasons:
        (reason, _), count = reasons.most_common(1)[0], reasons.total()
        yield f"{UNSTEADY_MARK} unsteady, because the machine was not quiet ({counted(count, 'cell')}); {TOUCHED}. Such as: {reason}"


def _ranked(rows: list[SummaryRow]) -> list[SummaryRow]:
    """Sort by speed-up, then by throughput, and mark the best."""
    ranked = sorted(
        rows, key=lambda row: (row.verdict is not Verdict.OK, -(row.speedup or 0.0), -(row.throughput or 0.0))
    )
    trusted = [row for row in rows if row.verdict is Verdict.OK]
    fastest = max(trusted, key=lambda row: row.throughput or 0.0, default=None)
    return [replace(row, best=row is fastest) for row in ranked]


def _row(lane: LaneRecord, cell: CellRecord, baseline: str) -> SummaryRow:
    def figure(name: str) -> float | None:
        value = cell.metrics.get(name)
        return None if value is None or not math.isfinite(value) else value

    def ends(name: str) -> tuple[float, float] | None:
        low, high = (figure(end) for end in METRICS[name].ends)
        return None if low is None or high is None else (low, high)

    engine = lane.engine_of(cell)
    return SummaryRow(
        workload=lane.lane.label,
        compiler=lane.lane.compiler_label,
        precision=lane.lane.precision,
        batch=cell.batch,
        verdict=cell.verdict,
        reason=cell.reason,
        noise=cell.noise,
        unsteady=cell.unsteady,
        variables=cell.environment,
        throughput=figure("throughput"),
        throughput_ci=ends("throughput"),
        latency_p50_ms=figure("latency_p50_ms"),
        latency_p99_ms=figure("latency_p99_ms"),
        baseline=baseline,
        speedup=figure("speedup"),
        speedup_ci=ends("speedup"),
        cpu_percent=figure("cpu_percent"),
        parity_cosine=figure("parity_cosine"),
        compile_total_s=figure("compile_total_s"),
        compiled_by=engine.reused.study_id if engine is not None and engine.reused is not None else None,
        built_beside=engine.built_beside if engine is not None else 0,
        precision_in_force=cell.precision_in_force,
        fallback_nodes=fallback_nodes(lane.flags_in_force(cell.batch)),
        cell=cell.id,
    )
