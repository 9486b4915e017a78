"""``mlflow-ngraph doctor``: is this machine fit to measure, and what would make it fitter."""

from __future__ import annotations

from dataclasses import asdict

import click
from rich.text import Text

from mlflow_ngraph.cli import output, tables

_STYLES = {"ok": "green", "warning": "yellow", "problem": "red"}


@click.command()
@output.json_option
def doctor(as_json: bool) -> int:
    """Check Python, compilers, processors, load, memory, disk and tracking server; changes nothing.

    Exit code 0, or 1 if something must be mended before a study can run.
    """
    from mlflow_ngraph.cli.checks import all_checks

    findings = list(all_checks())
    code = 1 if any(finding.status == "problem" for finding in findings) else 0
    if as_json:
        output.print_json({"findings": [asdict(finding) for finding in findings], "exit_code": code})
        return code
    tables.show(
        output.console(),
        ["check", "status", ("found", tables.PROSE), ("what to do", tables.PROSE)],
        [
            (finding.check, Text(finding.status, style=_STYLES[finding.status]), finding.found, finding.remedy)
            for finding in findings
        ],
    )
    return code
