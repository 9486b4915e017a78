"""The final table of a study: what a person looks at first."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mlflow_ngraph.devices.fingerprint import processor
from mlflow_ngraph.devices.registry import misfit
from mlflow_ngraph.metrics import METRICS, titled
from mlflow_ngraph.text import UNSTEADY_MARK, counted, markdown_row, rounded
from mlflow_ngraph.verdicts import Verdict

if TYPE_CHECKING:
    from mlflow_ngraph.execute.record import CellRecord, LaneRecord, StudyRecord


@dataclass(frozen=True)
class SummaryRow:
    """One cell of the final table. A number that the cell does not have is None."""

    workload: str
    """The short name."""
    compiler: str
    """With the flags that were given."""
    precision: str
    batch: int
    verdict: Verdict
    reason: str
    noise: str
    """What disturbed the machine meanwhile: absolute figures are marked."""
    unsteady: tuple[str, ...]
    """The metrics of the cell that this touches."""
    variables: str
    """Of the environment, those that may make one runtime faster or slower; they may touch speed-ups, too."""
    throughput: float | None
    """Samples per second."""
    throughput_ci: tuple[float, float] | None
    """Ends of the 95 % interval."""
    latency_p50_ms: float | None
    latency_p99_ms: float | None
    baseline: str
    """The label of the compiler that the speed-up is over."""
    speedup: float | None
    speedup_ci: tuple[float, float] | None
    """Ends of the 95 % interval."""
    cpu_percent: float | None
    """Of the whole machine."""
    parity_cosine: float | None
    compile_s: float | None
    """Export included; of the study that compiled the engine, where it was reused."""
    compiled_by: str | None
    """The id of that study; None where the engine was compiled here."""
    built_beside: int
    """The most others that were prepared or compiled at the same time."""
    precision_in_force: str | None
    fallback_nodes: int
    """Nodes that another provider took than the one that was asked for, as far as the compiler tells."""
    cell: str
    """The id of the cell; `mlflow-ngraph explain` takes it."""
    best: bool = False
    """Whether it is the fastest trustworthy cell of its workload, batch size and precision."""

    @property
    def speedup_mark(self) -> str:
        """What stands before the speed-up: that foreign load is in it."""
        return UNSTEADY_MARK if "speedup" in self.unsteady else ""

    @property
    def precisions(self) -> str:
        """The precision in force, with the one asked for where they differ."""
        return precisions(self.precision, self.precision_in_force)

    @property
    def compile_text(self) -> str:
        """The compile seconds, marked where another study spent them, or where they would be fewer with nothing beside."""
        if self.compile_s is None:
            return ""
        return f"{'≤ ' if self.built_beside else ''}{_number(self.compile_s)}{' (reused)' if self.compiled_by else ''}"

    @property
    def verdict_text(self) -> str:
        """The verdict, and what a reader has to know about an ``ok`` cell before comparing it."""
        note = fallback_note(self.fallback_nodes)
        return f"{self.verdict}, {note}" if note else str(self.verdict)


def precisions(asked: str, in_force: str | None) -> str:
    """The precision in force, with the one asked for where they differ."""
    return asked if in_force in (None, "", asked) else f"{in_force} (asked: {asked})"


def fallback_nodes(flags: Mapping[str, Any]) -> int:
    """How many nodes fell back to another provider, from the flags in force.

    0 where the compiler has no providers, or a flag of this name that is something else: names of flags are the adapters' own.
    """
    nodes = flags.get("fallback_nodes")
    return nodes if type(nodes) is int else 0


def fallback_note(nodes: int) -> str:
    """That nodes fell back, in words; empty where none did."""
    return f"{counted(nodes, 'node')} fell back to another provider" if nodes else ""


def measured_with(variables: str) -> str:
    """What to think of figures that were measured with some variables set."""
    return f"measured with {variables}, which may make one compiler faster or slower than it is without"


def summary_rows(record: StudyRecord) -> list[SummaryRow]:
    """A row for every cell with a verdict.

    Workloads stand in the order of the study, batch sizes ascend, and within a batch size the rows are sorted by
    speed-up, those that are not ``ok`` last.
    """
    groups: dict[tuple[str, str, int], list[SummaryRow]] = {}
    for lane in record.lanes.values():
        for cell in lane.cells.values():
            row = _row(lane, cell, record.baseline)
            groups.setdefault((row.workload, row.precision, row.batch), []).append(row)
    order = {name: index for index, name in enumerate(dict.fromkeys(workload for workload, _, _ in groups))}
    ranked = sorted(groups.items(), key=lambda item: (order[item[0][0]], item[0][1], item[0][2]))
    return [row for _, rows in ranked for row in _ranked(rows)]


def refers_to(record: StudyRecord) -> list[str]:
    """What speed-ups and comparisons of outputs refer to, which workloads have no speed-up for lack of a baseline, and the processor
    that all figures are of where the profile is for others.
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


def shortfall(record: StudyRecord) -> str:
    """How far the intervals reach of a study that asked for less, in one sentence for all its cells; else empty."""
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
    """The ends of ascending shares in percent, once where they look alike."""
    return " to ".join(dict.fromkeys(rounded(100 * share, 2) for share in (shares[0], shares[-1])))


def _without_baseline(record: StudyRecord) -> Iterator[str]:
    """A line for each workload that was measured, and not with the baseline."""
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


def markdown(rows: Sequence[SummaryRow], limit: int | None = None) -> str:
    """The table in Markdown, in at most ``limit`` characters; says how many rows did not fit."""
    speedup = titled("speed-up", next((row.baseline for row in rows), None))
    titles = (
        "workload", "compiler", "batch", "throughput [samples/s, 95 % interval]", "p50 [ms]", f"{speedup} [95 % interval]", "CPU [%]",
        "parity (cosine)", "compile [s]", "precision", "verdict",
    )  # fmt: skip
    head = [f"| {' | '.join(titles)} |", "|:--|:--|--:|--:|--:|--:|--:|--:|--:|:--|:--|"]
    lines = [*head, *map(_line, rows)]
    text = "\n".join(lines) + "\n"
    if limit is None or len(text) <= limit:
        return text
    room = limit - len("\n".join(head)) - 80
    shown = list(_fitting(lines[len(head) :], room))
    return "\n".join([*head, *shown, "", f"{len(rows) - len(shown)} more rows in the artifact summary.md."]) + "\n"


def _fitting(lines: list[str], room: int) -> Iterator[str]:
    for line in lines:
        room -= len(line) + 1
        if room < 0:
            return
        yield line


def _ranked(rows: list[SummaryRow]) -> list[SummaryRow]:
    """By speed-up, else by throughput, with the winner marked."""
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
        compile_s=figure("compile_total_s"),
        compiled_by=engine.reused.study_id if engine is not None and engine.reused is not None else None,
        built_beside=engine.built_beside if engine is not None else 0,
        precision_in_force=cell.precision_in_force,
        fallback_nodes=fallback_nodes(lane.flags_in_force(cell.batch)),
        cell=cell.id,
    )


def _line(row: SummaryRow) -> str:
    mark = UNSTEADY_MARK if row.noise else ""
    throughput = mark + _number(row.throughput) + _ends(row.throughput_ci) if row.throughput is not None else ""
    speedup = row.speedup_mark + _number(row.speedup) + _ends(row.speedup_ci)
    cells = [
        row.workload,
        row.compiler,
        str(row.batch),
        f"**{throughput}**" if row.best else throughput,
        mark + _number(row.latency_p50_ms) if row.latency_p50_ms is not None else "",
        speedup,
        mark + _number(row.cpu_percent) if row.cpu_percent is not None else "",
        "" if row.parity_cosine is None else f"{row.parity_cosine:.6f}",
        row.compile_text,
        row.precisions,
        row.verdict_text if row.verdict is Verdict.OK else f"**{row.verdict}** {row.reason}"[:160],
    ]
    return markdown_row(cells)


def _ends(ends: tuple[float, float] | None) -> str:
    return f" [{_number(ends[0])}, {_number(ends[1])}]" if ends else ""


def _number(value: float | None) -> str:
    return "" if value is None else rounded(value)
