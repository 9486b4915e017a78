"""Compatibility matrix of compilers and models as Markdown, from whole studies."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mlflow_ngraph.devices.fingerprint import summary
from mlflow_ngraph.execute.record import CellRecord, LaneRecord, StudyRecord
from mlflow_ngraph.parity import TOLERANCES
from mlflow_ngraph.tables import sheet as sheets
from mlflow_ngraph.tables.remarks import fallback_nodes, fallback_note
from mlflow_ngraph.tables.sheet import Cell, Sheet
from mlflow_ngraph.verdicts import Verdict

_LONGEST = 400
"""Longest reason in characters."""
_ABOUT = ("python", "torch", "timm", "onnx", "onnxscript", "onnxruntime", "openvino", "apache-tvm", "apache-tvm-ffi")
"""Packages whose versions decide a compiler's abilities."""


def markdown(records: Sequence[StudyRecord], title: str, made_by: str) -> str:
    """Write the page.

    Parameters
    ----------
    records : Sequence[StudyRecord]
        Studies, finished or not; each of their precisions becomes a section.
    title : str
        First heading.
    made_by : str
        Command that makes the page.
    """
    lines = [f"# {title}", "", f"Made by `{made_by}`; not written by hand.", "", *_legend()]
    for record in records:
        for precision in dict.fromkeys(lane.lane.precision for lane in record.lanes.values()):
            lanes = [lane for lane in record.lanes.values() if lane.lane.precision == precision]
            lines += ["", *_section(precision, lanes)]
        lines += ["", _where(record)]
    return "\n".join(lines) + "\n"


def merged(records: Sequence[StudyRecord]) -> list[StudyRecord]:
    """Merge records of equal machines and versions, so that a matrix measured in parts is one table.

    A lane measured twice is taken from the later record. The originals are not modified.
    """
    parts: dict[str, StudyRecord] = {}
    for record in records:
        key = json.dumps([record.fingerprint.get("digest"), *sorted(record.versions.items())])
        first = parts.get(key)
        parts[key] = record if first is None else replace(record, lanes={**first.lanes, **record.lanes})
    return list(parts.values())


def _legend() -> list[str]:
    return [
        "Every engine was compiled, saved, loaded in a fresh process, and run on random inputs. `ok` is followed by the",
        "largest error of its outputs against eager execution in fp32, relative to the largest output; what is allowed",
        "is in [parity](../explanation/parity.md). A raised number leads to the reason below the table, in the compiler's own",
        "words. This is about function: nothing here was measured for speed.",
    ]


def _section(precision: str, lanes: Sequence[LaneRecord]) -> Iterator[str]:
    compilers = list(dict.fromkeys(lane.lane.compiler_label for lane in lanes))
    rows: dict[tuple[str, str, int], dict[str, tuple[LaneRecord, CellRecord | None]]] = {}
    for lane in lanes:
        for batch in lane.lane.batch_sizes:
            place = rows.setdefault((lane.lane.label, lane.lane.family, batch), {})
            place[lane.lane.compiler_label] = lane, lane.cells.get(batch)
    batches = sorted({batch for _, _, batch in rows})
    cells = [cell for row in rows.values() for _, cell in row.values()]
    yield f"## {precision}"
    yield ""
    yield f"{_tally(cells)} Batch size{'s' * (len(batches) > 1)} {', '.join(map(str, batches))}."
    yield ""
    several = len(batches) > 1
    lines: list[list[Any]] = [
        [
            label,
            family,
            *([batch] if several else []),
            *(_cell(*row[name]) if name in row else "" for name in compilers),
        ]
        for (label, family, batch), row in rows.items()
    ]
    worst = [_worst(row[name][1] for row in rows.values() if name in row) for name in compilers]
    lines.append([Cell("largest error", tone="heading"), "", *([""] if several else []), *worst])
    heads = ["model", "family", *(["batch"] if several else []), *compilers]
    yield sheets.markdown(Sheet("", heads, lines, one="cell"))
    tolerance = TOLERANCES[precision]
    yield ""
    yield f"Allowed in {precision}: a relative error of {tolerance.max_rel:g} and a cosine similarity of 1 −"
    yield f"{1 - tolerance.cosine:.1g}; the smallest found is {_cosine(cells)}."


def _cell(lane: LaneRecord, cell: CellRecord | None) -> Cell:
    if cell is None:
        return Cell("not measured")
    if cell.verdict is not Verdict.OK:
        compiler = lane.lane.compiler_label
        reason = cell.reason or "no reason was given"
        text = reason if reason.startswith((f"{compiler}:", f"{compiler} ")) else f"{compiler}: {reason}"
        return Cell(str(cell.verdict), note=_cut(text), tone="heading")
    in_force = cell.precision_in_force
    notes = [in_force] if in_force not in (None, lane.lane.precision) else []
    notes += [note] if (note := fallback_note(fallback_nodes(lane.flags_in_force(cell.batch)))) else []
    error = f" {_error(cell.parity.max_rel)}" if cell.parity is not None else ""
    return Cell(f"ok{error}{''.join(f', {note}' for note in notes)}")


def _cut(text: str) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= _LONGEST else plain[: _LONGEST - 1] + "…"


def _tally(cells: Iterable[CellRecord | None]) -> str:
    counts = Counter(str(cell.verdict) if cell is not None else "not measured" for cell in cells)
    fine = counts.pop(str(Verdict.OK), 0)
    others = "".join(f", {number} {name}" for name, number in counts.most_common())
    return f"{fine + counts.total()} cells: {fine} ok{others}."


def _worst(cells: Iterable[CellRecord | None]) -> str:
    errors = [cell.parity.max_rel for cell in _fine(cells) if cell.parity is not None]
    return _error(max(errors)) if errors else ""


def _error(value: float) -> str:
    return f"{value:.1e}" if value else "0"


def _cosine(cells: Iterable[CellRecord | None]) -> str:
    cosines = [cell.parity.cosine for cell in _fine(cells) if cell.parity is not None]
    return f"1 − {1 - min(cosines):.1e}" if cosines else "none"


def _fine(cells: Iterable[CellRecord | None]) -> Iterator[CellRecord]:
    return (cell for cell in cells if cell is not None and cell.verdict is Verdict.OK)


def _where(record: StudyRecord) -> str:
    day = time.strftime("%Y-%m-%d", time.gmtime(record.finished_at or record.started_at))
    isa = " ".join(record.fingerprint["hardware"]["cpu"]["isa"])
    return f"Measured on {day} on {summary(dict(record.fingerprint))} ({isa}), with {_versions(record.versions)}."


def _versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {versions[name]}" for name in _ABOUT if versions.get(name))
