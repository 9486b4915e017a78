"""The page of all claims: a table of verdicts, then the figures behind each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from evidence.verdicts import Answer, Verdict

_HEAD = """# The paper, claim by claim

Made by `python results/claims.py`; not written by hand.

These are 24 claims of *Leveraging Neural Graph Compilers in Machine Learning Research for Edge-Cloud Systems* (Furutanpey,
Walser, Raith, Frangoudis, Dustdar; 2025) that figures can confirm or refute. Each is judged twice by one condition: by the
paper's own tables, and by archived studies of this tool, whose archives lie in `results/archives`.
"""
_READING = """
* **holds**: each figure that the claim speaks of lies where the claim says; for "up to", one does. **does not hold**: one
  figure does not; for "up to", none does; for "most", half do not. **undecided**: intervals include the border, or figures are
  missing. **needs a device**: the archives have none of that kind. **nothing there**: no table has such figures.
* Brackets are intervals that hold together for all figures of a claim, with 95 % (Bonferroni). A figure without one has none
  in the paper, or is exact. Those of Table VI follow from its standard deviations over 100 repetitions, taken as independent.
* Where a claim speaks of a difference in general, a ratio of 1.1 is where it begins. Speed-ups are over eager execution. ASE is
  the absolute scaling efficiency, BSR the batch scaling resilience. Slope and retention are those of the speed-up over the depth
  of a stack of blocks: the gain per block, and that of the deepest stack over that of one block.
* Any x86-64 processor stands for the paper's Xeon, any NVIDIA GPU for its RTX 4070.
* Conditions are data in `results/claims.yaml`; `results/README.md` says how to measure and how to compute this page again.
"""


@dataclass(frozen=True)
class Row:
    """A claim with its two answers."""

    number: int
    claim: str
    place: str
    study: str
    """Ready-made study that would tell, with its options."""
    tables: Answer
    measured: Answer
    note: str = ""


def text(rows: Sequence[Row], studies: Sequence[Sequence[str]]) -> str:
    """The whole page."""
    details = (line for row in rows for line in _detail(row))
    return "\n".join([*_head(rows), *_table(rows), _READING, *_measured(studies), *details]) + "\n"


def _head(rows: Sequence[Row]) -> Iterator[str]:
    yield _HEAD
    yield f"* By the paper's tables: {_counts([row.tables for row in rows])}."
    yield f"* By our measurements: {_counts([row.measured for row in rows])}."
    unknown = (Verdict.UNDECIDED, Verdict.NEEDS_DEVICE, Verdict.NOTHING)
    still = [row for row in rows if row.tables.verdict in unknown and row.measured.verdict in unknown]
    named = ", ".join(f"[{row.number}](#claim{row.number})" for row in still)
    yield f"* By one or the other: {len(rows) - len(still)} of {len(rows)} have a verdict; without one: {named or 'none'}.\n"


def _counts(answers: Sequence[Answer]) -> str:
    counts = Counter(answer.verdict for answer in answers)
    return ", ".join(f"{verdict.value} {counts[verdict]}" for verdict in Verdict if counts[verdict])


def _table(rows: Sequence[Row]) -> Iterator[str]:
    yield "| # | claim | by the paper's tables | by our measurements |"
    yield "|--:|:--|:--|:--|"
    for row in rows:
        yield f"| [{row.number}](#claim{row.number}) | {row.claim} | {_brief(row.tables)} | {_brief(row.measured)} |"


def _measured(studies: Sequence[Sequence[str]]) -> Iterator[str]:
    if not studies:
        yield "Nothing has been measured yet."
        return
    yield "| archive | study | machine | cells | while it was not quiet |"
    yield "|:--|:--|:--|--:|--:|"
    yield from (f"| {' | '.join(study)} |" for study in studies)


def _brief(answer: Answer) -> str:
    verdict = f"**{answer.verdict.value}**"
    if answer.deciding is not None:
        return f"{verdict} ({answer.deciding.brief})"
    return f"{verdict} (not measured)" if answer.verdict is Verdict.UNDECIDED else verdict


def _detail(row: Row) -> Iterator[str]:
    yield f'\n<a id="claim{row.number}"></a>**{row.number}. {row.claim}** ({row.place})\n'
    for source, answer in (("the paper's tables", row.tables), ("our measurements", row.measured)):
        yield f"* By {source}: **{answer.verdict.value}**"
        yield from (f"  * {judged.detail}" for judged in answer.judged)
    if row.measured.verdict in (Verdict.UNDECIDED, Verdict.NEEDS_DEVICE):
        yield f"* What would tell: {row.study}"
    if row.note:
        yield f"* {row.note}"
