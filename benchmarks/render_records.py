"""Render the records of ``benchmarks/records`` as the tables of ``docs/verification.md``, between the two markers.

``python benchmarks/render_records.py``
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from record_contact import parts
from support import records
from support.records import Record, Result

PAGE = Path(__file__).parents[1] / "docs" / "verification.md"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
TOPICS = {
    "verdicts": "Right verdicts",
    "decisions": "Decisions and intervals",
    "speed": "Speed",
    "serving": "Serving and pulling",
    "robustness": "Robustness",
    "security": "Security",
    "platforms": "Other devices and versions",
}
_HEAD = ("| what | result | bar | met | machine, date |", "|:--|:--|:--|:--|:--|")
_MET = {True: "yes", False: "**NOT MET**", None: "open"}


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(PAGE)


def page(text: str) -> str:
    """The page with its tables made anew."""
    before, _, after = parts(text, PAGE, BEGIN, END)
    return "\n".join([f"{before}{BEGIN}", "", *_tables(), "", f"{END}{after}"])


def _tables() -> Iterator[str]:
    read = records.read()
    missed = [
        f"[{record.id}](#{record.id})"
        for topic in TOPICS
        for record in read[topic]
        if any(result.met is False for result in record.results)
    ]
    yield "Bars that are not met are in these rows:"
    yield ",\n".join(missed) + "."
    for topic, title in TOPICS.items():
        yield from ("", f"### {title}", "", *_HEAD)
        for record in read[topic]:
            yield from _rows(record)
    yield from ("", "### Machines", "", "| machine | what it is |", "|:--|:--|")
    yield from (f"| {key} | {text} |" for key, text in records.machines().items())


def _rows(record: Record) -> Iterator[str]:
    """A row for each result with a bar, or one for the first result; the first row names the record."""
    what = f'<a id="{record.id}"></a>{record.what}'
    if not record.results:
        yield f"| {what} | no figures yet | – | – | – |"
    where = ", ".join(filter(None, (record.machine, "busy" if record.busy else "", record.date)))
    for result in [result for result in record.results if result.bar] or record.results[:1]:
        met = _MET[result.met] if result.bar else "–"
        yield f"| {what} | {_said(result)} | {result.bar or '–'} | {met} | {where} |"
        what = where = ""


def _said(result: Result) -> str:
    if result.value is None and result.interval is None:
        return f"{result.name}: not measured"
    low, high = map(_number, result.interval or (0, 0))
    if result.value is None:
        return f"{result.name}: {low} to {high} {result.unit}"
    interval = f"[{low}, {high}]" if result.interval else ""
    return " ".join(filter(None, (f"{result.name}: {_number(result.value)}", result.unit, interval)))


def _number(value: float) -> str:
    return (f"{value:,}" if value >= 10_000 else str(value)).replace("e-0", "e-")


if __name__ == "__main__":
    main()
