"""Verify an engine package: files, compatibility, outputs and speed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mlflow_ngraph.engines import compatibility, model_files
from mlflow_ngraph.engines.load_check import LoadCheck
from mlflow_ngraph.engines.package import Package, open_package
from mlflow_ngraph.errors import EngineError
from mlflow_ngraph.text import rounded

Status = Literal["ok", "problem", "skipped"]

FLOOR = 0.8
"""The share of the recorded throughput below which an engine is slower than it was: less is a busy machine's noise."""


@dataclass(frozen=True)
class Check:
    """Result of one check."""

    name: Literal["trust", "digests", "mlflow", "compatibility", "probe", "throughput"]
    status: Status
    found: str


@dataclass(frozen=True)
class Verification:
    """Results of all checks of a package."""

    directory: Path
    package: Package | None
    """None where it is damaged."""
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        return all(check.status != "problem" for check in self.checks)

    def require(self) -> None:
        """Raise `EngineError` for the first failed check."""
        for check in self.checks:
            if check.status == "problem":
                raise EngineError(check.found)


def verify(
    directory: Path,
    digest: str | None = None,
    measure_seconds: float = 0.0,
    before_running: Callable[[Package], None] = lambda package: None,
) -> Verification:
    """Verify a package: its files, its compatibility, its outputs in a child process, and last its speed.

    A failed check ends the verification: no runtime sees a file that is not the packaged one. ``digest`` is the
    manifest's sha256 from another source. The engine is timed for ``measure_seconds``, or not with 0. ``before_running``
    is given the whole package, and may raise `EngineError` so that it does not run.
    """
    try:
        package = open_package(directory, digest)
    except EngineError as error:
        return _stopped(directory, None, [], Check("digests", "problem", str(error)), measure_seconds)
    pinned = "" if digest is None else ", and the manifest is the one that was logged"
    count = len(package.manifest.engine_files())
    checks = [Check("digests", "ok", f"{count} files of the engine are what was packaged{pinned}")]
    checks += model_check(package)
    try:
        compatibility.check(package.manifest, str(directory))
    except EngineError as error:
        return _stopped(directory, package, checks, Check("compatibility", "problem", str(error)), measure_seconds)
    checks.append(_compatible(package))
    try:
        before_running(package)
        answer = _tried(package, measure_seconds)
        checks.append(_probe_check(answer))
    except EngineError as error:
        return _stopped(directory, package, checks, Check("probe", "problem", str(error)), measure_seconds)
    if measure_seconds:
        checks.append(_throughput_check(package, answer))
    return Verification(directory, package, tuple(checks))


def model_check(package: Package) -> list[Check]:
    """Where the files of MLflow in a checked package are from; empty if it never had any."""
    known, found = model_files.summary(package.directory, package.manifest)
    return [Check("mlflow", "ok" if known else "skipped", found)] if found else []


def verify_arrived(package: Package, trial: LoadCheck) -> Verification:
    """Verify a downloaded package in ``trial``; digests and requirements were compared during the download."""
    count = len(package.manifest.engine_files())
    logged = f"{count} files of the engine and the manifest are what was logged"
    checks = [Check("digests", "ok", logged), _compatible(package)]
    try:
        checks.append(_probe_check(trial.answer(package.directory)))
    except EngineError as error:
        return _stopped(package.directory, package, checks, Check("probe", "problem", str(error)), 0.0)
    return Verification(package.directory, package, tuple(checks))


def _compatible(package: Package) -> Check:
    """Describe the requirements that this machine meets."""
    needs = ", ".join(f"{name} {value}".strip() for name, value in package.manifest.spec.requires.items())
    return Check("compatibility", "ok", needs or "it needs nothing in particular")


def _stopped(
    directory: Path, package: Package | None, before: list[Check], problem: Check, measure_seconds: float
) -> Verification:
    names: tuple[Literal["digests", "compatibility", "probe", "throughput"], ...] = (
        "digests", "compatibility", "probe", "throughput",
    )  # fmt: skip
    later = names[names.index(problem.name) + 1 : None if measure_seconds else -1]
    skipped = [Check(name, "skipped", f"because of the problem with its {problem.name}") for name in later]
    return Verification(directory, package, (*before, problem, *skipped))


def _probe_check(answer: dict[str, Any]) -> Check:
    if answer["problem"]:
        return Check("probe", "problem", f"its outputs are not those of the model: {answer['problem']}")
    if not answer["judged"]:
        return Check("probe", "skipped", f"rounding decides its outputs for the probe at {answer['precision']}")
    comparison = answer["parity"]
    said = f"relative error {comparison['max_rel']:.1e}, cosine similarity {comparison['cosine']:.8f}"
    return Check("probe", "ok", f"{said}: what rounding does at {answer['precision']}")


def _throughput_check(package: Package, answer: dict[str, Any]) -> Check:
    measured = answer.get("measured")
    if measured is None:
        return Check("throughput", "skipped", "because of the problem with its probe")
    recorded = [figures for figures in package.manifest.figures if figures.batch == measured["batch"]]
    here = f"{rounded(measured['throughput'])} samples/s at batch {measured['batch']:.0f}"
    if not recorded or "throughput" not in recorded[0].metrics:
        return Check("throughput", "skipped", f"{here}; none was recorded")
    share = measured["throughput"] / recorded[0].metrics["throughput"]
    said = f"{here}, {share:.0%} of the recorded {rounded(recorded[0].metrics['throughput'])}"
    return Check("throughput", "ok" if share >= FLOOR else "problem", said)


def _tried(package: Package, seconds: float) -> dict[str, Any]:
    with LoadCheck(package.manifest.spec) as trial:
        return trial.answer(package.directory, seconds)
