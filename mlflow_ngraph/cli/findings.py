"""``mlflow-ngraph results findings``: conclusions from recorded results, in words."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from mlflow_ngraph.cli import output, writing
from mlflow_ngraph.cli.filters import Asked, filter_options
from mlflow_ngraph.cli.kept import KeptCommand
from mlflow_ngraph.cli.lists import items
from mlflow_ngraph.errors import require_known
from mlflow_ngraph.objectives import AS_GOOD
from mlflow_ngraph.text import counted

if TYPE_CHECKING:
    from mlflow_ngraph.analysis.findings import Finding, Survey

FORMATS = ("text", "markdown", "json")
_LIMIT = 20


@click.command(cls=KeptCommand)
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

    Everything that is tested, is tested as one family against a margin of 3 %. The most important finding comes first.
    """
    asked = Asked(given)
    form = writing.form("json" if as_json else form, target, FORMATS, {".md": "markdown", ".json": "json"})

    from mlflow_ngraph.analysis import findings as finding
    from mlflow_ngraph.metrics import TABLE

    wanted = items(kinds)
    require_known("kind of finding", wanted, finding.KINDS)
    selection = asked.selection()
    frame = asked.read([name for name in (*finding.NEEDED, "run_id") if name in TABLE])
    selection.check(frame)
    survey = finding.survey(selection.of(frame))
    scope = shlex.join(asked.scope())
    chosen = [
        replace(entry, command=entry.command_in(scope))
        for entry in survey.findings
        if not wanted or entry.kind in wanted
    ]
    shown = chosen[:limit] if limit else chosen
    if form == "text" and not target:
        _show(shown, len(chosen), survey)
    else:
        writing.write(_text(shown, len(chosen), survey, form), target)
    return 0


def _text(shown: Sequence[Finding], count: int, survey: Survey, form: str) -> str:
    from mlflow_ngraph.analysis import findings as finding

    if form == "json":
        about = {"cells": survey.cells, "hypotheses": survey.hypotheses, "margin": AS_GOOD, "count": count}
        return output.json_text({**about, "findings": [asdict(entry) for entry in shown]})
    if form == "markdown":
        return f"{finding.markdown(list(shown))}\n{_tally(len(shown), count, survey)}\n"
    lines = [f"{entry.title}\n  {entry.text}\n  $ {entry.command}\n" for entry in shown]
    return "\n".join([*lines, _tally(len(shown), count, survey), ""])


def _show(shown: Sequence[Finding], count: int, survey: Survey) -> None:
    console = output.console()
    for finding in shown:
        console.print(Text(finding.title, style="bold"))
        console.print(Text(output.broken(f"  {finding.text}", console.width, "  ")))
        # A command has to stay in one piece, so that it can be copied.
        console.print(Text(f"  $ {finding.command}", style="dim"), soft_wrap=True)
        console.print()
    console.print(_tally(len(shown), count, survey))


def _tally(shown: int, count: int, survey: Survey) -> str:
    more = f", of which {shown} are shown (--limit 0 shows all)" if shown < count else ""
    return f"{counted(count, 'finding')}{more}; {survey.tested} tested, against a margin of {100 * AS_GOOD:g} % and as one family at 5 %"
