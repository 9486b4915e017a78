"""``mlflow-ngraph doctor``: print the results of `checks` on this machine with remedies; fail on problems."""

from __future__ import annotations

from dataclasses import asdict

import click

from mlflow_ngraph.cli import output, tables
from mlflow_ngraph.tables.sheet import Cell, Sheet, Tone, prose

_TONES: dict[str, Tone] = {"ok": "good", "warning": "warning", "problem": "bad"}


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
    rows = [
        (finding.check, Cell(finding.status, tone=_TONES[finding.status]), finding.found, finding.remedy)
        for finding in findings
    ]
    tables.show(output.console(), Sheet("", ["check", "status", prose("found"), prose("what to do")], rows))
    return code
