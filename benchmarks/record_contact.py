"""Put the reports of first contacts into the documents.

``python benchmarks/record_contact.py FOLDER... [--documents docs]``

Each FOLDER is what ``mlflow-ngraph local first-contact`` wrote, or what somebody sent of it. The page goes to
``docs/reference/first-contact-DEVICE.md``, and the row of the device in ``docs/verification.md``, between the two markers,
is replaced or added. What is not between them stays as it is.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Sequence
from pathlib import Path

from mlflow_ngraph.tables.sheet import escaped
from mlflow_ngraph_testing.first_contact import report as reports
from mlflow_ngraph_testing.first_contact.report import Report

BEGIN, END = "<!-- first contacts: begin -->", "<!-- first contacts: end -->"
_TITLES = ("device", "machine", "when", "right", "not right")


def main() -> None:
    """Record every folder that is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--documents", type=Path, default=Path(__file__).parents[1] / "docs")
    options = parser.parse_args()
    for folder in options.folders:
        record(reports.read(folder), options.documents)


def record(report: Report, documents: Path) -> None:
    """Write the page of a report, and its row."""
    page = documents / "reference" / f"first-contact-{report.device}.md"
    verification = documents / "verification.md"
    text = verification.read_text(encoding="utf-8")
    before, between, after = parts(text, verification, BEGIN, END)
    mark = f"| [{report.device}]("
    others = [line for line in between.splitlines() if line.startswith("| [") and not line.startswith(mark)]
    rows = sorted([*others, row(report)])
    table = [_row(_TITLES), _row([":--"] * len(_TITLES)), *rows]
    verification.write_text("\n".join([f"{before}{BEGIN}", "", *table, "", f"{END}{after}"]), encoding="utf-8")
    page.write_text("\n".join(report.lines()) + "\n", encoding="utf-8")
    print(f"{page}, {verification}")


def row(report: Report) -> str:
    """The parts of a report in one row; their page says what was seen."""
    machine = report.parts["machine"].tables if "machine" in report.parts else ()
    named = {line[0]: line[1] for table in machine for line in table.rows if table.title == "This machine"}
    found = [(title, report.parts[name]) for name, title in report.planned if name in report.parts]
    others = [f"{title} ({part.status})" for title, part in found if part.status != "right"]
    when = f"{time.strftime('%Y-%m-%d', time.gmtime(report.started_at))}, {report.package}, {report.form} form"
    right = f"{len(found) - len(others)} of {len(found)}"
    cells = (named.get("machine", ""), when, right, "; ".join(others) or "–")
    return _row([f"[{report.device}](reference/first-contact-{report.device}.md)", *map(escaped, cells)])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def parts(text: str, path: Path, begin: str, end: str) -> tuple[str, str, str]:
    """What stands before, between and after two markers."""
    found = re.fullmatch(f"(.*){re.escape(begin)}(.*){re.escape(end)}(.*)", text, re.DOTALL)
    if found is None:
        raise SystemExit(f"{path} lacks the markers {begin} and {end}")
    return found[1], found[2], found[3]


if __name__ == "__main__":
    main()
