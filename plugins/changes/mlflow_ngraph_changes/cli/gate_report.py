"""Renderers of a gate's judgement: table, Markdown for a pull request, JUnit XML, JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from mlflow_ngraph.cli import output, tables
from mlflow_ngraph.errors import few
from mlflow_ngraph.tables.sheet import Cell, Column, Sheet, Tone, escaped, faint, first, number, prose
from mlflow_ngraph.tables.sheet import markdown as of_sheet
from mlflow_ngraph.text import counted, json_records, missing, percent, percents, plain, rounded

if TYPE_CHECKING:
    import pandas as pd

    from mlflow_ngraph.analysis.described import Described

_SHOWN = 40
"""Rows of a summary: nobody reads more, and platforms cut comments."""
_COLUMNS = (
    *(
        "outcome",
        "device",
        prose("workload"),
        prose("compiler"),
        "precision",
        number("batch"),
        "metric",
        number("baseline"),
    ),
    *(number("candidate"), number("change"), Column("95 % interval", spare=1), prose("reason")),
)
_TONES: dict[str, Tone] = {"passed": "good", "failed": "bad", "could not tell": "warning"}
_SIGNS = {"passed": "✅", "failed": "❌", "could not tell": "❔"}


def show(judged: Described) -> None:
    """Print the judgement: failures first, then changes of the others."""
    table, about = judged
    verdict = Cell(_verdict(table, about), tone=_TONES[about["outcome"]])
    apart = [Cell(line, tone="bad") for line in _apart(about)]
    if apart:
        tables.show(output.console(), *apart, verdict)
    else:
        tables.show(output.console(), _sheet(table, [*faint(_notes(table, about)), verdict]))


def markdown(judged: Described) -> str:
    """The judgement for a pull request, failures first."""
    table, about = judged
    head = f"### {_SIGNS[about['outcome']]} {escaped(_verdict(table, about))}"
    sheet = first(_sheet(table, _notes(table, about)), _SHOWN, f"are {_outcomes(table.iloc[_SHOWN:])}")
    return f"{head}\n\n{of_sheet(*_apart(about), sheet)}\n"


def _sheet(table: pd.DataFrame, notes: Iterable[str | Cell]) -> Sheet:
    return Sheet("", _COLUMNS, [_cells(row) for _, row in table.iterrows()], list(notes))


def json(judged: Described) -> str:
    """The judgement as JSON."""
    return output.json_text({**judged.about, "cells": json_records(judged.table)})


def junit(judged: Described) -> str:
    """The judgement as JUnit XML: a test case for each cell and metric, skipped where it could not be told."""
    table, about = judged
    blind = int((table["outcome"] == "could not tell").sum())
    failed = int((table["outcome"] != "passed").sum()) - blind
    counts = {"tests": str(len(table)), "failures": str(failed), "errors": "0", "skipped": str(blind)}
    suites = ET.Element("testsuites", counts)
    suite = ET.SubElement(suites, "testsuite", {"name": "mlflow-ngraph results gate", **counts})
    properties = ET.SubElement(suite, "properties")
    for name in ("candidate", "baseline"):
        ET.SubElement(properties, "property", {"name": name, "value": str(about[name])})
    for _, row in table.iterrows():
        cells = _cells(row)
        place, case = (" ".join(part for part in cells[start:stop] if part) for start, stop in ((1, 3), (3, 7)))
        element = ET.SubElement(suite, "testcase", {"classname": place or "cell", "name": case or str(row["cell"])})
        message = f"{row['outcome']}: {row['reason']}"
        if row["outcome"] == "could not tell":
            ET.SubElement(element, "skipped", {"message": _legal(message)})
        elif row["outcome"] != "passed":
            failure = ET.SubElement(element, "failure", {"message": _legal(message), "type": str(row["outcome"])})
            failure.text = _legal(f"baseline {cells[7]}, candidate {cells[8]}, change {cells[9]} {cells[10]}".strip())
    ET.indent(suites)
    return ET.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _verdict(table: pd.DataFrame, about: dict[str, Any]) -> str:
    bad = table[table["outcome"] != "passed"]
    which = f"{about['candidate']} against {about['baseline']}"
    if bad.empty:
        return f"gate passed: {which}, {counted(len(table), 'comparison')}"
    return f"gate {about['outcome']}: {which}, {len(bad)} of {len(table)} comparisons ({_outcomes(bad)})"


def _apart(about: dict[str, Any]) -> Iterator[str]:
    """That the sides have nothing in common, and which models they are of."""
    if not about["common"]:
        has = [f"{side} has {', '.join(names) or 'no names'}" for side, names in about["labels"].items()]
        yield f"no cell in common: the {'; the '.join(has)}"


def _outcomes(rows: pd.DataFrame) -> str:
    return ", ".join(f"{count} {outcome}" for outcome, count in rows["outcome"].value_counts().items())


def _notes(table: pd.DataFrame, about: dict[str, Any]) -> Iterator[str]:
    bounds = ", ".join(f"{name} {percent(bound)}" for name, bound in about["thresholds"].items())
    tests = counted(about["tested"], "test")
    yield f"allowed: {bounds}; a larger loss fails where {tests} together (Holm, 2 %) rule out chance"
    blind = table.loc[table["outcome"] == "could not tell", "notices"].dropna()
    if len(blind):
        least, most = (rounded(100 * float(share), 2) for share in (blind.min(), blind.max()))
        which = f"of at least {least} %" if least == most else f"of at least {least} to {most} %"
        yield f"could not tell: only a change {which} would be noticed there; measure with more rounds, or on a quieter machine"
    cells = {name: set(table.loc[table["metric"] == name, "cell"]) for name in ("speedup", "throughput")}
    if cells["speedup"] - cells["throughput"]:
        yield "a speed-up does not show what slows its baseline as well: --threshold speedup=-3%,throughput=-3% gates that, too"
    yield "the two studies share no rounds: absolute figures are compared, and include how the machine changed in between"
    for known in about["between_studies"]:
        yield (
            f"from study to study, {known['metric']} on {known['device']} differs by {100 * known['deviation']:.2g} % (standard "
            f"deviation) beside what intervals say ({counted(known['figures'], 'cell')} in {known['studies']} earlier studies): allowed for"
        )
    if not about["between_studies"]:
        yield "several earlier studies of the machine would show how large such changes are"
    if about["machines"]["candidate"] != about["machines"]["baseline"]:
        yield f"machines differ: {', '.join(about['machines']['candidate'])} against {', '.join(about['machines']['baseline'])}"
    if about["changed"]:
        yield f"not the weights or code of the baseline: {few(about['changed'])}"
    if about["skipped"]:
        yield f"{about['skipped']} cells of the baseline are not ok and were not asked for"
    if about["new"]:
        yield f"{about['new']} cells of the candidate are not in the baseline"


def _cells(row: pd.Series[Any]) -> list[str]:
    names = ("outcome", "device", "label", "compiler_label", "precision", "batch", "metric")
    texts = ["" if missing(row[name]) else str(row[name]) for name in names]
    numbers = [rounded(plain(row[name])) for name in ("baseline", "candidate")]
    interval = percents(row["ci_low"], row["ci_high"])
    return [*texts, *numbers, percent(plain(row["change"])), interval, str(row["reason"] or "")]


def _legal(text: str) -> str:
    """Text without the characters that XML forbids."""
    return "".join(letter for letter in text if letter in "\t\n\r" or ord(letter) >= 0x20)
