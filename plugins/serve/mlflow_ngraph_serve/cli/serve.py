"""``mlflow-ngraph engine serve``: an engine behind the Open Inference Protocol."""

from __future__ import annotations

from typing import Any

import click

from mlflow_ngraph.cli.transfers import arriving
from mlflow_ngraph.cli.trust_options import run_option, trust_option
from mlflow_ngraph_serve.cli.serving_options import serving_options


@click.command()
@click.argument("engine", metavar="PATH|URI")
@serving_options
@click.option("--tracking-uri", metavar="URI", help="Where models: are; by default what MLflow is configured to use.")
@trust_option
@run_option
def serve(engine: str, name: str | None, tracking_uri: str | None, trust: str | None, run: bool, **options: Any) -> int:
    """Serve an engine over HTTP, by the Open Inference Protocol (KServe v2) with binary tensors.

    PATH is the directory of an engine package; its files, whether it fits, and its outputs are checked first. URI is
    models:/NAME@ALIAS, models:/NAME/VERSION or models:/MODEL_ID; the engine is then pulled first. Without --name clients
    call the model as the network is called.

    Batches are made of requests as the engine's measured figures suggest: see the lines at the start. SIGTERM ends the
    server when all that came in is answered.
    """
    from mlflow_ngraph_serve import process, source
    from mlflow_ngraph_serve.settings import Settings, check_name

    settings = Settings.read(options)
    if name is not None:
        check_name(name)
    with arriving("pulling") as progress:
        package = source.obtain(engine, tracking_uri, trust, progress, run=run)
    process.become(package, name or source.default_name(package), settings)
