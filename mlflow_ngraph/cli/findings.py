"""``mlflow-ngraph findings``: what recorded results say, in words."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click
from rich.padding import Padding
from rich.text import Text

from mlflow_ngraph.cli import output, writing
from mlflow_ngraph.cli.filters import Asked, filter_options
from mlflow_ngraph.cli.lists import items
from mlflow_ngraph.errors import UnknownNameError
from mlflow_ngraph.text import counted

if TYPE_CHECKING:
    from mlflow_ngraph.analysis.findings import Finding, Survey

FORMATS = ("text", "markdown", "json")
_LIMIT = 20


@click.command()
@filter_options
@click.option("--kinds", metavar="KIND,...", help="Only findings of these kinds.")
@click.option("--limit", type=click.IntRange(min=0), default=_LIMIT, show_default=True,
              help="Show at most so many, the most important ones; 0 shows all.")  # fmt: skip
@click.option("--format", "form", metavar="|".join(FORMATS), help="How to print (default: text).")
@click.option(
    "--output", "target", metavar="FILE", help="Write there instead of printing; its ending tells the format."
)
@output.json_option
def findings(kinds: str | None, limit: int, form: str | None, target: str | None, as_json: bool, **given: Any) -> int:
    """Say what the results show: reversals, losses, knees, friction, regressions, and cells without a number.

    Everything that is tested, is tested as one family against a margin of 2 %. The most important finding comes first.
    """
    asked = Asked(given)
    form = writing.form("json" if as_json else form, target, FORMATS, {".md": "markdown", ".json": "json"})

    from mlflow_ngraph.analysis import findings as finding
    from mlflow_ngraph.metrics import TABLE

    wanted = items(kinds)
    for name in wanted:
        if name not in finding.KINDS:
            raise UnknownNameError("kind of finding", name, finding.KINDS)
    selection = asked.selection()
    frame = asked.read([name for name in (*finding.NEEDED, "run_id") if name in TABLE])
    selection.check(frame)
    found = finding.survey(selection.of(frame))
    scope = shlex.join(asked.scope())
    chosen = [
        replace(one, command=f"{one.command} {scope}".rstrip())
        for one in found.findings
        if not wanted or one.kind in wanted
    ]
    shown = chosen[:limit] if limit else chosen
    if form == "text" and not target:
        _show(shown, len(chosen), found)
    else:
        writing.write(_text(shown, len(chosen), found, form), target)
    return 0


def _text(shown: Sequence[Finding], count: int, found: Survey, form: str) -> str:
    from mlflow_ngraph.analysis import findings as finding

    if form == "json":
        about = {"cells": found.cells, "hypotheses": found.hypotheses, "margin": finding.MARGIN, "count": count}
        return output.json_text({**about, "findings": [asdict(one) for one in shown]})
    if form == "markdown":
        return f"{finding.markdown(list(shown))}\n{_tally(len(shown), count, found)}\n"
    lines = [f"{one.title}\n  {one.text}\n  $ {one.command}\n" for one in shown]
    return "\n".join([*lines, _tally(len(shown), count, found), ""])


def _show(shown: Sequence[Finding], count: int, found: Survey) -> None:
    console = output.console()
    for one in shown:
        console.print(Text(one.title, style="bold"))
        console.print(Padding(Text(one.text), (0, 0, 0, 2)))
        # A command has to stay in one piece, so that it can be copied.
        console.print(Text(f"  $ {one.command}", style="dim"), soft_wrap=True)
        console.print()
    console.print(_tally(len(shown), count, found))


def _tally(shown: int, count: int, found: Survey) -> str:
    more = f", of which {shown} are shown (--limit 0 shows all)" if shown < count else ""
    return f"{counted(count, 'finding')}{more}; {found.tested} tested, against a margin of 2 % and as one family at 5 %"
