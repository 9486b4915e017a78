"""``mlflow-ngraph fleet follow``: pull a registry alias's engine whenever it moves, and with ``--serve`` serve it."""

from __future__ import annotations

import os
import re
import socket
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import click

from mlflow_ngraph import home as home_directory
from mlflow_ngraph.cli.trust_options import run_option, trust_option
from mlflow_ngraph.errors import UsageError
from mlflow_ngraph.validation import duration_s
from mlflow_ngraph_serve.cli.serving_options import serving_options

_SOURCE = re.compile(r"models:/(?P<name>[^/@]+)@(?P<alias>[^/@]+)$")
_FOR_SERVING = "watch_for"
"""Options of this verb; the others are those of a server."""


@click.command()
@click.argument("champion", metavar="models:/NAME@ALIAS")
@click.option("--serve", is_flag=True, help="Serve the champion, as 'mlflow-ngraph engine serve' does.")
@click.option("--every", metavar="TIME", default="10s", show_default=True, help="How often to look at the alias.")
@click.option("--watch-for", metavar="TIME", default="60s", show_default=True,
              help="How long a new champion may be taken back by a crash or a failure.")  # fmt: skip
@click.option("--device", metavar="NAME", help="What this machine is called in tags; by default its host name.")
@click.option("--again", is_flag=True, help="Try a version once more that was refused.")
@click.option("--allow-other-interface", "other_interface", is_flag=True,
              help="Take a version whose workload, inputs or outputs are not those of the engine before.")  # fmt: skip
@click.option("--to", "target", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
              help="Where engines are kept; DIR/current leads to the good one.")  # fmt: skip
@serving_options
@click.option("--tracking-uri", metavar="URI", help="Where the alias is; by default what MLflow is configured to use.")
@trust_option
@run_option
@click.option("--home", type=click.Path(file_okay=False, path_type=Path), help="Where journals and engines are kept.")
@click.pass_context
def follow(
    context: click.Context,
    /,
    *,
    champion: str,
    serve: bool,
    every: str,
    watch_for: str,
    device: str | None,
    again: bool,
    other_interface: bool,
    target: Path | None,
    name: str | None,
    tracking_uri: str | None,
    trust: str | None,
    run: bool,
    home: Path | None,
    **options: Any,
) -> int:
    """Have on this device what an alias points at, and with --serve serve it, until SIGTERM or Ctrl-C.

    When the alias moves, the engine is pulled, and proven as 'pull' does. With --serve it is then loaded beside the one that
    serves, answers an inference for trial, and takes its place without a connection being lost; should it crash or fail within
    the time of --watch-for, the one before is back at once. A version that failed is not tried again until the alias has
    pointed at another one, nor is one that clients would have to ask for something else. Without --name clients call the model by its registered name.

    A tracking server that is away changes nothing: the good engine is served, also after a restart.
    """
    from mlflow_ngraph.tracking import connection
    from mlflow_ngraph_serve.following.follower import follow as follow_alias
    from mlflow_ngraph_serve.following.options import FollowerOptions

    model, alias = _parsed(champion)
    if not serve:
        _refuse_options(context, {"name", _FOR_SERVING, *options})
    # MLflow is not asked where it need not be: it would be in the memory of this process for ever.
    uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or connection.resolve_uri(None)
    wanted = FollowerOptions(
        name=model,
        alias=alias,
        tracking_uri=uri,
        directory=(target or _place(model, alias, uri, home)).expanduser().absolute(),
        device=device or socket.gethostname(),
        every_s=_seconds("--every", every),
        trust=trust,
        run=run,
        home=home,
        again=again,
        other_interface=other_interface,
        **(_serving(name, model, _seconds("--watch-for", watch_for), options) if serve else {}),
    )
    with suppress(KeyboardInterrupt):
        follow_alias(wanted, click.echo)
    return 0


def _parsed(text: str) -> tuple[str, str]:
    from mlflow_ngraph.tracking.model_registry import check_alias

    match = _SOURCE.match(text)
    if match is None:
        raise UsageError(f"{text!r} is no alias that could be followed: give models:/NAME@ALIAS")
    return match["name"], check_alias(match["alias"])


def _serving(name: str | None, model: str, watch_s: float, options: dict[str, Any]) -> dict[str, Any]:
    from mlflow_ngraph_serve.settings import Settings, check_name

    settings = Settings.read(options)
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", model).strip("-._")[:100] or "engine"
    return {"served_name": check_name(name) if name is not None else plain, "settings": settings, "watch_s": watch_s}


def _refuse_options(context: click.Context, names: set[str]) -> None:
    """Refuse what says how to serve where nothing is served."""
    given = click.core.ParameterSource.COMMANDLINE
    unfit = sorted(f"--{name.replace('_', '-')}" for name in names if context.get_parameter_source(name) == given)
    if unfit:
        raise UsageError(f"{', '.join(unfit)}: only with --serve")


def _place(model: str, alias: str, uri: str, home: Path | None) -> Path:
    """A directory of its own for every alias of every server."""
    digest = sha256(f"{uri}\n{model}\n{alias}".encode()).hexdigest()[:8]
    readable = re.sub(r"[^\w.@-]+", "-", f"{model}@{alias}", flags=re.ASCII)[:100]
    return home_directory.directory(home) / "following" / f"{readable}-{digest}"


def _seconds(option: str, text: str) -> float:
    try:
        return duration_s(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None
