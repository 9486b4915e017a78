"""``mlflow-ngraph engine verify``: check an engine's trust, files, fit to this machine and outputs; optionally its speed."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.text import Text

from mlflow_ngraph.cli import output
from mlflow_ngraph.cli.lists import FiniteRange
from mlflow_ngraph.cli.trust_options import run_option, trust_option
from mlflow_ngraph.errors import EngineError
from mlflow_ngraph.verdicts import Verdict

if TYPE_CHECKING:
    from mlflow_ngraph.engines.manifest import Manifest
    from mlflow_ngraph.engines.package import Package
    from mlflow_ngraph.engines.trust import Rules
    from mlflow_ngraph.engines.verification import Check, Verification

_STYLES = {"ok": "green", "problem": "red", "skipped": "yellow"}


@click.command()
@click.argument("engine", metavar="PATH|URI")
@click.option("--measure", is_flag=True, help="Also time the engine, and compare with what was recorded.")
@click.option("--seconds", type=FiniteRange(0.1, 600), default=5.0, show_default=True, help="How long to time.")
@click.option("--tracking-uri", metavar="URI", help="Where models: are; by default what MLflow is configured to use.")
@trust_option
@run_option
@output.json_option
def verify(
    engine: str, measure: bool, seconds: float, tracking_uri: str | None, trust: str | None, run: bool, as_json: bool
) -> int:
    """Check whom an engine is from, its digests, whether it fits this machine, and its outputs on its probe.

    PATH is the directory of an engine package. URI is models:/NAME@ALIAS, models:/NAME/VERSION or models:/MODEL_ID;
    the engine is then brought here for the time of the check. The engine runs in a process of its own, if it is to be
    trusted; one that is a program runs if a rule or --run allows it, or a study of this home has compiled it. The exit
    code is 1 if anything is wrong, and 2 if PATH is no engine package.
    """
    from mlflow_ngraph.engines import package as packages
    from mlflow_ngraph.engines import trust as trusting

    how: dict[str, Any] = {
        "rules": trusting.load(trust), "seconds": seconds if measure else 0.0, "run": run, "as_json": as_json,
    }  # fmt: skip
    packages.require_name(engine)
    if Path(engine).is_dir() or ":" not in engine:
        packages.require(Path(engine))
        return _verify(Path(engine), [Path(engine)], None, **how)
    from mlflow_ngraph.tracking import connection, download, signature_files

    uri = connection.resolve_uri(tracking_uri)
    trusting.require_source(uri, how["rules"])
    remote = download.locate(engine, uri)
    for source in remote.sources:
        trusting.require_source(source, how["rules"])
    with tempfile.TemporaryDirectory(prefix="ngraph-verify-") as temporary:
        package = download.pull(remote, Path(temporary) / "package")
        signature_files.bring(remote, package.directory)
        return _verify(package.directory, remote.sources, remote.digest, **how)


def _verify(
    directory: Path,
    sources: Sequence[Path | str],
    digest: str | None,
    rules: Rules,
    seconds: float,
    run: bool,
    as_json: bool,
) -> int:
    """Print the facts of a package, those about trust before anything of it runs, and return the exit code."""
    from mlflow_ngraph.engines import trust, verification
    from mlflow_ngraph.engines.package import read_manifest
    from mlflow_ngraph.engines.verification import Check, Verification
    from mlflow_ngraph.release import consent

    first: list[Check] = []

    def told(package: Package, found: str) -> None:
        first.append(Check("trust", "ok", found))
        if not as_json:
            show_trust(package.manifest, first[0])

    def before_running(package: Package) -> None:
        told(package, f"{trusted.found}; {consent.kind(package.manifest)}")
        consent.require(package.manifest, package.digest, trusted, run)

    try:
        package = read_manifest(directory, digest)
    except EngineError:
        found = verification.verify(directory, digest, seconds)  # which says what is wrong, and runs nothing
    else:
        try:
            trusted, *_ = [trust.require_package(package, source, rules) for source in sources]
        except EngineError as error:
            found = Verification(directory, package, (Check("trust", "problem", str(error)),))
        else:
            found = verification.verify(directory, digest, seconds, before_running)
            if not first:
                told(package, trusted.found)
    if as_json:
        output.print_json(document(replace(found, checks=(*first, *found.checks))))
    else:
        show_checks(found.checks, output.console())
    return 0 if found.ok else 1


def show_trust(manifest: Manifest, check: Check) -> None:
    """Print which engine it is, and why it is trusted."""
    console = output.console()
    console.print(manifest.shown, style="bold", markup=False)
    for figures in manifest.figures:
        if figures.verdict != Verdict.OK:
            reason = f": {figures.reason}" if figures.reason else ""
            console.print(
                f"{figures.verdict} at batch {figures.batch}{reason}", style="yellow", markup=False, soft_wrap=True
            )
    show_checks([check], console)


def show_checks(checks: Sequence[Check], console: Console) -> None:
    """Print a line for each check."""
    for check in checks:
        status = (f"{check.status:<8}", _STYLES[check.status])
        console.print(Text.assemble(f"{check.name:<14}", status, check.found), soft_wrap=True)


def document(found: Verification) -> dict[str, Any]:
    """The result as JSON."""
    manifest = found.package.manifest if found.package else None
    return {
        "path": str(found.directory),
        "ok": found.ok,
        "workload": manifest.spec.workload if manifest else None,
        "compiler": manifest.spec.compiler if manifest else None,
        "manifest_sha256": found.package.digest if found.package else None,
        "checks": [{"check": check.name, "status": check.status, "found": check.found} for check in found.checks],
    }
