"""Judge the claims of ``claims.yaml`` by the paper's tables and by archived studies; write ``docs/reference/claims.md``.

The tables and figures of the archives go beside it, into ``measured.md``; beside another page, into ``PAGE-measured.md``.

``python results/claims.py [ARCHIVE...]``

Without an archive, those of ``results/archives`` are read. Figures are rounded, so that the page is equal on every machine.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evidence import archives, page, paper_tables, report
from evidence.derived import derived
from evidence.figures import Figure, select
from evidence.verdicts import Condition, by_measurements, by_tables
from mlflow_ngraph import documents
from mlflow_ngraph.errors import NGraphError

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "reference" / "claims.md"


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archives", nargs="*", type=Path, metavar="ARCHIVE")
    parser.add_argument("--output", type=Path, default=PAGE, metavar="FILE")
    options = parser.parse_args()
    output: Path = options.output
    try:
        output.open("a").close()  # before minutes of work
        measured = archives.read(options.archives or sorted((HERE / "archives").glob("*.tar")))
        output.write_text(page.text(judged(measured), measured.studies), encoding="utf-8")
        print(output)
        if measured.studies:
            # Beside a page of somebody else there may be other files of these names.
            own = output.resolve() == PAGE
            tables = output.with_name("measured.md" if own else f"{output.stem}-measured.md")
            report.write(measured, tables, alone=own)
            print(tables)
    except (NGraphError, OSError) as error:
        raise SystemExit(f"error: {error}") from None


def judged(measured: archives.Measured) -> list[page.Row]:
    """All claims with both verdicts."""
    theirs, ours = ([*figures, *derived(figures)] for figures in (paper_tables.figures(), measured.figures))
    rows = []
    for number, claim in enumerate(documents.from_yaml(HERE / "claims.yaml"), 1):
        asked = claim.pop("conditions")
        tables = by_tables(_conditions(asked, theirs))
        measurements = by_measurements(_conditions(asked, ours), measured.devices)
        rows.append(page.Row(number=number, **claim, tables=tables, measured=measurements))
    return rows


def _conditions(asked: Sequence[dict[str, Any]], figures: Sequence[Figure]) -> list[Condition]:
    return [Condition(**{**one, "figures": select(figures, **one["figures"])}) for one in asked]


if __name__ == "__main__":
    main()
