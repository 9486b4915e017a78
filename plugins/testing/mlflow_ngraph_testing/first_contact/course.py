"""Sequence of the parts of a first contact, each under a time limit; the report is written after each."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mlflow_ngraph.devices.base import DeviceProfile
from mlflow_ngraph.devices.registry import create
from mlflow_ngraph.error_text import one_line
from mlflow_ngraph.errors import UsageError
from mlflow_ngraph.version import __version__
from mlflow_ngraph_testing.first_contact import report as reports
from mlflow_ngraph_testing.first_contact.bench import BASELINE, Bench, Form
from mlflow_ngraph_testing.first_contact.contract import contract
from mlflow_ngraph_testing.first_contact.finding import Finding
from mlflow_ngraph_testing.first_contact.machine import machine
from mlflow_ngraph_testing.first_contact.parity import paper_models
from mlflow_ngraph_testing.first_contact.peers import peers
from mlflow_ngraph_testing.first_contact.report import Report
from mlflow_ngraph_testing.first_contact.sensing import sensing
from mlflow_ngraph_testing.first_contact.studying import interruption, locking, smoke

WHOLE_S: Mapping[Form, float] = {"short": 580.0, "full": 10 * 3600.0}
"""All parts together; the short form fits into ten minutes."""
_LEAST_S = 5.0
"""A part that would have less does not begin."""
_LIKELIEST = ("orin", "gpu", "xeon", "host")
"""Devices, the most particular first."""


@dataclass(frozen=True)
class Part:
    """A part of a first contact."""

    name: str
    title: str
    limits: Mapping[Form, float]
    """Seconds."""
    run: Callable[[Bench, float], Finding]
    anywhere: bool = False
    """True where it runs on a machine of another kind, and without compilers."""


PARTS: Sequence[Part] = (
    # Whoever imports PyTorch first on a machine reads gigabytes from its disk.
    Part("machine", "machine and what lacks", {"short": 45, "full": 180}, machine, anywhere=True),
    Part("sensors", "clocks and power, live", {"short": 40, "full": 180}, sensing),
    # On a GPU each process of a study imports PyTorch anew.
    Part("smoke", "study smoke", {"short": 140, "full": 600}, smoke),
    Part("lock", "one study at a time", {"short": 75, "full": 300}, locking),
    Part("interruption", "killed and resumed", {"short": 110, "full": 600}, interruption),
    Part("peers", "the runtimes' own tools", {"short": 120, "full": 600}, peers),
    Part("contract", "contract suite", {"short": 240, "full": 3 * 3600}, contract),
    # The last one has all that the others have left.
    Part("paper-models", "models of the paper", {"short": 580, "full": 6 * 3600}, paper_models),
)


def fitting() -> str:
    """The most specific device profile of this machine."""
    return next((name for name in _LIKELIEST if create(name).fitness().serves), _LIKELIEST[-1])


def begin(device: str, form: Form, folder: Path, *, resume: bool) -> Report:
    """The report to continue: a new one, or that of the folder without unfinished parts.

    Raises
    ------
    UsageError
        There is a report where none was expected, or it is none of this device and form.
    """
    if not (folder / reports.JSON_NAME).exists():
        return Report(device, form, __version__, [(part.name, part.title) for part in PARTS])
    if not resume:
        raise UsageError(f"there is a report in {folder}: go on with it with --resume, or name another --output")
    report = reports.read(folder)
    if (report.device, report.form) != (device, form):
        raise UsageError(f"the report in {folder} is of device {report.device!r} in its {report.form} form")
    report.parts = {name: part for name, part in report.parts.items() if part.status == "right"}
    return report


def follow(
    report: Report,
    profile: DeviceProfile,
    folder: Path,
    tell: Callable[[str], None],
    parts: Sequence[Part] = PARTS,
    whole_s: float | None = None,
) -> Report:
    """Try every part that the report has not, and keep the report in the folder up to date.

    Parameters
    ----------
    tell : Callable[[str], None]
        Called with progress, a line at a time.
    whole_s : float | None
        Seconds for all of them; by default those of the form.
    """
    form: Form = "full" if report.form == "full" else "short"
    bench = Bench(profile, folder, form)
    deadline = time.monotonic() + (WHOLE_S[form] if whole_s is None else whole_s)
    report.write(folder)
    for part in parts:
        if part.name in report.parts:
            continue
        left = min(part.limits[form], deadline - time.monotonic())
        tell(f"{part.title}, {max(left, 0):.0f} s at most")
        finding = _try(part, bench, left)
        report.parts[part.name] = finding
        report.write(folder)
        tell(f"  {finding.status}: {finding.said}")
    return report


def _try(part: Part, bench: Bench, seconds: float) -> Finding:
    """Run a part; its exception becomes its finding."""
    start = time.monotonic()
    if not part.anywhere and (why := _obstacle(bench)):
        return Finding("lacking", why)
    if seconds < _LEAST_S:
        return Finding("incomplete", "no time was left for it")
    try:
        finding = part.run(bench, seconds)
    except TimeoutError as error:
        finding = Finding("incomplete", one_line(error))
    except Exception as error:  # noqa: BLE001 - whatever one part does, the others are tried
        finding = Finding("wrong", f"the part itself failed: {one_line(error)}")
    return replace(finding, seconds=time.monotonic() - start)


def _obstacle(bench: Bench) -> str:
    """Reason why nothing can run for the device here; empty if something can."""
    fitness = bench.profile.fitness()
    if not fitness.serves:
        return "needs what lacks"
    if BASELINE not in bench.compilers:
        return f"nothing to compare with: {BASELINE} cannot run here"
    return ""
