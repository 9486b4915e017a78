"""``mlflow-ngraph serve``: an engine behind the Open Inference Protocol."""

from __future__ import annotations

from typing import Any

import click

from mlflow_ngraph.cli.keys import trust_option
from mlflow_ngraph.cli.transfers import arriving


@click.command()
@click.argument("engine", metavar="PATH|URI")
@click.option("--name", help="The model's name for clients; by default that of the network.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen; 0.0.0.0 is everywhere.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="0 takes a free one.")
@click.option(
    "--max-p99-ms", type=float, help="The latency that 99 of 100 answers shall keep; decides what is left out."
)
@click.option("--max-batch", type=click.IntRange(1), help="Samples in a batch, and in a request, at most.")
@click.option("--max-delay-ms", type=click.FloatRange(0), help="How long a request waits for others to fill a batch.")
@click.option("--max-queue", type=click.IntRange(1), help="Samples that may wait; more are told to come back later.")
@click.option("--max-body-mb", type=float, help="The largest request; by default that of the largest batch as JSON.")
@click.option("--timeout-s", type=float, default=30.0, show_default=True, help="How long a request may take.")
@click.option("--workers", type=click.IntRange(1, 64), default=1, show_default=True, help="Engines to load.")
@click.option("--tracking-uri", metavar="URI", help="Where models: are; by default what MLflow is configured to use.")
@trust_option
def serve(engine: str, name: str | None, tracking_uri: str | None, trust: str | None, **options: Any) -> int:
    """Serve an engine over HTTP, by the Open Inference Protocol (KServe v2) with binary tensors.

    PATH is the directory of an engine package; its files, whether it fits, and its outputs are checked first. URI is
    models:/NAME@ALIAS, models:/NAME/VERSION or models:/MODEL_ID; the engine is then pulled first.

    Batches are made of requests as the engine's measured figures suggest: see the lines at the start. SIGTERM ends the
    server when all that came in is answered.
    """
    from mlflow_ngraph.serving import process, source
    from mlflow_ngraph.serving.metrics import require
    from mlflow_ngraph.serving.settings import Settings, check_name

    settings = Settings.read(options)
    require()
    if name is not None:
        check_name(name)
    with arriving("pulling") as progress:
        package = source.obtain(engine, tracking_uri, trust, progress)
    process.become(package, name or source.default_name(package), settings)
