"""``mlflow-ngraph engine export-triton``: an engine as a model of a Triton model repository."""

from __future__ import annotations

from pathlib import Path

import click

from mlflow_ngraph.cli import output
from mlflow_ngraph.cli.transfers import arriving
from mlflow_ngraph.cli.trust_options import run_option, trust_option


@click.command("export-triton")
@click.argument("engine", metavar="PATH|URI")
@click.argument("repository", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option("--name", help="The model's name; by default that of the network.")
@click.option("--batch-size", type=click.IntRange(1), help="Which engine, where each batch size has its own.")
@click.option("--max-p99-ms", type=float, help="The latency that 99 of 100 answers shall keep.")
@click.option("--tracking-uri", metavar="URI", help="Where models: are; by default what MLflow is configured to use.")
@trust_option
@run_option
@output.json_option
def export_triton(
    engine: str,
    repository: Path,
    name: str | None,
    batch_size: int | None,
    max_p99_ms: float | None,
    tracking_uri: str | None,
    trust: str | None,
    run: bool,
    as_json: bool,
) -> int:
    """Write an engine into DIR as a model for NVIDIA Triton: ONNX Runtime, OpenVINO, TensorRT and TorchScript.

    The preferred batch sizes and the delay of Triton's dynamic batching come from the engine's measured figures. What
    Triton makes of the files is not tried here.
    """
    from mlflow_ngraph_serve import source
    from mlflow_ngraph_serve.settings import Settings, check_name
    from mlflow_ngraph_serve.triton import export

    wishes = Settings.read({"max_p99_ms": max_p99_ms}).wishes
    # The files are compared with their digests; whether the engine fits is a question for Triton's machine.
    local = source.is_directory(engine)
    with arriving("pulling") as progress:
        package = (
            source.whole(Path(engine), trust)
            if local
            else source.obtain(engine, tracking_uri, trust, progress, run=run)
        )
    called = check_name(name) if name is not None else source.default_name(package)
    made = export(package, repository, called, batch=batch_size, wishes=wishes)
    if as_json:
        output.print_json(
            {
                "directory": str(made.directory),
                "backend": made.backend,
                "max_batch_size": made.max_batch_size,
                "preferred_batch_sizes": made.preferred_batch_sizes,
                "notes": made.notes,
            }
        )
        return 0
    click.echo(made.directory)
    for note in made.notes:
        output.tell(f"note: {note}")
    return 0
