"""``mlflow-ngraph results recompute``: derive a study's figures anew from its samples, and compare bit for bit."""

from __future__ import annotations

import click

from mlflow_ngraph.cli import output, tables
from mlflow_ngraph.tables.sheet import Sheet


@click.command()
@click.argument("run")
@click.option("--tracking-uri", metavar="URI", help="Where to read; by default what MLflow is configured to use.")
@output.json_option
def recompute(run: str, tracking_uri: str | None, as_json: bool) -> int:
    """Derive all metrics of a study from its stored samples, and compare them bit for bit with the stored metrics.

    RUN is the id of a study run, or of one of its lane runs, or the name or id of a study: of a name the latest one. Exit code 0 if everything is equal, 1 if not.
    """
    from mlflow_ngraph_archives.recompute import recompute as again

    study = again(run, tracking_uri)
    code = 1 if len(study.differences) else 0
    if as_json:
        output.print_json(
            {
                "study_id": study.study_id,
                "run_id": study.run_id,
                "cells": study.cells,
                "figures": study.figures,
                "samples": study.samples,
                "finished": study.finished,
                "differences": study.differences.to_dict("records"),
            }
        )
        return code
    console = output.console()
    if not study.finished:
        console.print("the journal ends before its study does: it was cut, or the study interrupted", style="yellow")
    done = f"{study.figures} figures of {study.cells} cells recomputed from {study.samples} samples of {study.study_id}"
    if not code:
        console.print(f"{done}: all equal, bit for bit")
        console.print(
            "the checks of the journal show accidents; without a key they do not show who wrote it", style="dim"
        )
        return code
    console.print(f"{done}: {len(study.differences)} differ", style="bold red")
    rows = list(study.differences.astype(str).itertuples(index=False))
    tables.show(console, Sheet("", ["cell", "figure", "stored", "recomputed"], rows))
    return code
