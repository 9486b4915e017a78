"""``mlflow-ngraph engine sign``: check an engine's files, and sign its manifest, in a folder or on a server."""

from __future__ import annotations

from pathlib import Path

import click

from mlflow_ngraph.cli import output, trust_options


@click.command()
@click.argument("engine", metavar="PATH|URI")
@click.option(
    "--key", required=True, type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="A private Ed25519 key of OpenSSH.",
)  # fmt: skip
@click.option("--tracking-uri", metavar="URI", help="Where models: are; by default what MLflow is configured to use.")
@output.json_option
def sign(engine: str, key: Path, tracking_uri: str | None, as_json: bool) -> int:
    """Sign the manifest of an engine, and with it every file of the engine.

    PATH is the directory of an engine package. URI is models:/NAME@ALIAS, models:/NAME/VERSION or models:/MODEL_ID, an
    engine that is compared with what its run recorded; the signature is logged with it. All files are compared with their
    digests first, and nothing of the engine runs. There is one signature: a new one takes its place.
    """
    from mlflow_ngraph.engines import package

    package.require_name(engine)
    private = trust_options.load(key)
    if Path(engine).is_dir() or ":" not in engine:
        package.require(Path(engine))
        opened = package.open_package(Path(engine))
        by, digest, where = package.sign(opened, private), opened.digest, str(opened.directory)
    else:
        from mlflow_ngraph.tracking import connection, download, signature_files
        from mlflow_ngraph_engines.logged_engine import check_whole

        uri = connection.resolve_uri(tracking_uri)
        remote, client = download.locate(engine, uri), connection.connect(uri)
        with connection.talking(uri, f"read {remote.shown}", connection.RECORDING):
            check_whole(client, client.get_logged_model(remote.model_id), remote)
        by, digest, where = signature_files.sign(remote, private), str(remote.digest), remote.shown
    if as_json:
        output.print_json({"engine": where, "manifest_sha256": digest, "signed_by": by})
    else:
        output.console().print(f"{where} is signed by {by}", markup=False, soft_wrap=True)
    return 0
