"""Results of a study's races as text, JSON and table: endings, departures, cells left out; chooses no best cell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mlflow_ngraph.execute.record import StudyRecord
from mlflow_ngraph.tables.sheet import Sheet, number, prose
from mlflow_ngraph.text import counted, rounded

_STOPPED = {
    "time": "the time was up",
    "repetitions": "no repetitions were left",
    "memory": "not all of them fit into memory together",
}
"""Reasons for undecided races."""
_COLUMNS = (
    *(prose("workload"), "cell", number("left after rounds"), "because of", number("times as fast")),
    number("at most, of the best"),
)


def results(record: StudyRecord) -> Iterator[str]:
    """One line per race, and one per reason for leaving cells out."""
    for workload, race in record.races.items():
        yield _ended(record, workload, race)
    reasons: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for cell in record.left_out.values():
        reasons.setdefault((record.lanes[cell["lane"]].lane.label, cell["reason"]), []).append(cell)
    for (label, reason), cells in reasons.items():
        named = ", ".join(_named(record, cell["lane"], cell["batch"]) for cell in cells)
        yield f"{label}: left out: {named}: {reason}"
    if any(not cell["final"] for cell in record.left_out.values()):
        yield "more time measures what was left out for lack of it: --resume --within TIME"


def document(record: StudyRecord) -> dict[str, Any]:
    """Plain values for JSON; empty where nothing was raced or left out.

    ``races`` by workload, as recorded in the journal; ``left``: cells eliminated from a race in order of rounds,
    with evidence; ``left_out``: cells that were not measured, with the reason.
    """
    left = [
        {**_cell(record, cell.lane, cell.batch), **cell.left}
        for lane in record.lanes.values()
        for cell in lane.cells.values()
        if cell.left
    ]
    omitted = [
        {**_cell(record, each["lane"], each["batch"]), "reason": each["reason"], "final": each["final"]}
        for each in record.left_out.values()
    ]
    if not (record.races or left or omitted):
        return {}
    left.sort(key=lambda row: (row["workload"], row["round"]))
    return {"study_id": record.id, "races": dict(record.races), "left": left, "left_out": omitted}


def parts(record: StudyRecord) -> Iterator[Sheet]:
    """Section of the summary; empty where `document` is."""
    if content := document(record):
        rows = [_departure(record, row) for row in content["left"]]
        yield Sheet("Races", _COLUMNS, rows, list(results(record)))


def _cell(record: StudyRecord, lane_id: str, batch: int) -> dict[str, Any]:
    lane = record.lanes[lane_id].lane
    names = ("workload", "label", "compiler", "compiler_label", "precision")
    return {"cell": lane.cell(batch), "lane": lane_id, **{name: getattr(lane, name) for name in names}, "batch": batch}


def _departure(record: StudyRecord, row: Mapping[str, Any]) -> list[str]:
    told_of = [row["label"], _named(record, row["lane"], row["batch"]), str(row["rounds"])]
    if row["limit"]:
        return [*told_of, row["limit"], "", ""]
    (rival,) = (
        _named(record, lane_id, batch)
        for lane_id, lane in record.lanes.items()
        for batch in lane.lane.batch_sizes
        if lane.lane.cell(batch) == row["rival"]
    )
    return [*told_of, rival, rounded(row["ratio"], 3), rounded(row["bound"], 3)]


def _ended(record: StudyRecord, workload: str, race: Mapping[str, Any]) -> str:
    label = next((lane.lane.label for lane in record.lanes.values() if lane.lane.workload == workload), workload)
    by = f"{label}, {race['objective']}"
    first, *others = (_named(record, cell["lane"], cell["batch"]) for cell in race["contenders"])
    if race["leader"] is None:
        return f"{by}: none of {counted(len(race['contenders']), 'cell')} keeps all limits"
    if race["ending"] == "won":
        return f"{by}: the race is over: all but {first} have left it"
    known = ", ".join((first, *others))
    if race["ending"] == "alike":
        margin = f"{100 * race['indifferent']:g} %"
        return f"{by}: the race is over: none of those left in it is more than {margin} better than another: {known}"
    return f"{by}: the race ended because {_STOPPED[race['ending']]}; left in it: {known}"


def _named(record: StudyRecord, lane_id: str, batch: int) -> str:
    lane = record.lanes[lane_id].lane
    precisions = {other.lane.precision for other in record.lanes.values()}
    name = lane.compiler_label if len(precisions) == 1 else f"{lane.compiler_label} {lane.precision}"
    return f"{name} at batch {batch}"
