"""All checks of ``mlflow-ngraph doctor``; here Python, compilers, processors, load, memory, disk, server."""

from __future__ import annotations

import importlib.util
import os
import platform
import shlex
import shutil
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from importlib.metadata import version
from urllib.parse import urlparse

import psutil

from mlflow_ngraph import home as home_directory
from mlflow_ngraph import torchvision_hook
from mlflow_ngraph.addresses import HIDDEN, shown
from mlflow_ngraph.cli import machine_checks
from mlflow_ngraph.cli.machine_checks import CheckResult, Status
from mlflow_ngraph.devices import probes, processors
from mlflow_ngraph.processes import disk_space
from mlflow_ngraph.tracking.connection import AMBIGUOUS, proxied

_BUSY_PERCENT = 10.0
_MEMORY_GIB = 4
_DISK_GIB = 10


def all_checks() -> Iterator[CheckResult]:
    """Every finding, in the order of a person's questions: can it run, is it complete, will numbers be steady."""
    for check in _CHECKS:
        yield from check()


def _python() -> Iterator[CheckResult]:
    python_version = platform.python_version()
    if (3, 10) <= tuple(map(int, platform.python_version_tuple()[:2])) <= (3, 13):
        yield CheckResult("python", "ok", python_version)
    else:
        yield CheckResult("python", "problem", python_version, "use Python 3.10 to 3.13")


def _compilers() -> Iterator[CheckResult]:
    from mlflow_ngraph.cli.compilers import describe
    from mlflow_ngraph.compilers.registry import COMPILERS

    for name in COMPILERS.names():
        row = describe(name)
        if row["available"]:
            yield CheckResult(f"compiler {name}", "ok", row["version"] or "available")
        else:
            yield CheckResult(f"compiler {name}", "warning", row["reason"], row["hint"])


def _cxx() -> Iterator[CheckResult]:
    # AOTInductor looks for the compiler in this order.
    path = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if path:
        yield CheckResult("C++ compiler", "ok", path)
    else:
        yield CheckResult("C++ compiler", "warning", "none", "install g++ (torch-compile compiles with it)")


def _torchvision() -> Iterator[CheckResult]:
    """Models of users import it, and its wheel on PyPI does not fit every build of torch."""
    if not all(importlib.util.find_spec(name) for name in ("torch", "torchvision")):
        return
    installed, problem = version("torchvision"), torchvision_hook.problem()
    if not problem:
        yield CheckResult("torchvision", "ok", installed)
        return
    remedy = (
        f"{shlex.quote(sys.executable)} -m {torchvision_hook.__name__} lets it be imported; or "
        f"{torchvision_hook.FITTING}"
    )
    yield CheckResult(
        "torchvision", "warning", f"{installed} cannot be imported beside torch {version('torch')}: {problem}", remedy
    )


def _processors() -> Iterator[CheckResult]:
    usable, cpu = processors.available(), probes.cpu()
    summary = f"{usable} usable of {cpu.threads} ({cpu.cores} cores)"
    if usable < cpu.threads:
        yield CheckResult(
            "processors", "warning", summary, "lift the affinity mask or CPU quota to measure the whole machine"
        )
    else:
        yield CheckResult("processors", "ok", summary)


def _load() -> Iterator[CheckResult]:
    before = _cpu_seconds()
    busy = psutil.cpu_percent(interval=1.0)
    if busy > _BUSY_PERCENT:
        spent = [
            (seconds - before.get(process, (name, 0.0))[1], name, process[0])
            for process, (name, seconds) in _cpu_seconds().items()
        ]
        _, name, pid = max(spent)
        load = f"{busy:.0f} % of the machine, most by {name} (process {pid})"
        yield CheckResult("load by others", "warning", load, "stop other work while measuring")
    else:
        yield CheckResult("load by others", "ok", f"{busy:.0f} % of the machine")


def _cpu_seconds() -> dict[tuple[int, float], tuple[str, float]]:
    """Name and CPU seconds so far of every other process. Threads of the kernel change their names while they work."""
    processes = {}
    for process in psutil.process_iter(["pid", "create_time", "name", "cpu_times"]):
        info = process.info
        if info["cpu_times"] is not None and info["pid"] != os.getpid():
            spent = info["cpu_times"].user + info["cpu_times"].system
            processes[info["pid"], info["create_time"]] = (info["name"], spent)
    return processes


def _frequency() -> Iterator[CheckResult]:
    governor = probes.governor()
    if not governor:
        yield CheckResult("frequency governor", "ok", "not shown by the kernel (usual in a virtual machine)")
    elif governor == "performance":
        yield CheckResult("frequency governor", "ok", governor)
    else:
        remedy = "for steadier numbers: cpupower frequency-set -g performance"
        yield CheckResult("frequency governor", "warning", governor, remedy)
    turbo = probes.turbo()
    if turbo is None:
        yield CheckResult("turbo", "ok", "not shown by the kernel")
    elif turbo:
        remedy = "for steadier clocks: echo 1 | sudo tee /sys/devices/system/cpu/intel_pstate/no_turbo, on other "
        remedy += "processors echo 0 | sudo tee /sys/devices/system/cpu/cpufreq/boost"
        yield CheckResult("turbo", "ok", "on: clocks depend on load and temperature", remedy)
    else:
        yield CheckResult("turbo", "ok", "off")


def _memory() -> Iterator[CheckResult]:
    free = psutil.virtual_memory().available / 2**30
    status: Status = "ok" if free >= _MEMORY_GIB else "warning"
    remedy = "" if status == "ok" else "large models and batches will not fit; free some memory"
    yield CheckResult("memory", status, f"{free:.1f} GiB available", remedy)


def _home() -> Iterator[CheckResult]:
    place = home_directory.location()
    free = disk_space.free_bytes(place) / 2**30
    if not os.access(disk_space.existing(place), os.W_OK):
        yield CheckResult(
            "home", "problem", f"{place} cannot be written", "choose another place with --home or NGRAPH_HOME"
        )
    elif free < _DISK_GIB:
        remedy = "engines of large models need more; choose another place with --home or NGRAPH_HOME"
        yield CheckResult("home", "warning", f"{place}, {free:.1f} GiB free", remedy)
    else:
        yield CheckResult("home", "ok", f"{place}, {free:.0f} GiB free")


def _tracking() -> Iterator[CheckResult]:
    # A login in the address is not shown, and not needed to see whether somebody answers.
    uri = shown(os.environ.get("MLFLOW_TRACKING_URI", ""))
    if not uri:
        yield CheckResult("tracking server", "ok", "none configured: results go to a local SQLite file")
    elif HIDDEN in uri:
        yield CheckResult("tracking server", "problem", f"{uri}: it is not clear where the login ends", AMBIGUOUS)
    elif urlparse(uri).scheme not in ("http", "https"):
        yield CheckResult("tracking server", "ok", f"{uri} (no server)")
    elif problem := server_problem(uri):
        remedy = "start it, correct MLFLOW_TRACKING_URI, or measure with --offline and sync later"
        yield CheckResult("tracking server", "problem", f"{uri}: {problem}{proxied(uri)}", remedy)
    else:
        yield CheckResult("tracking server", "ok", f"{uri} answers")


def server_problem(uri: str) -> str:
    """Reason why a tracking server does not answer; empty if it does."""
    try:
        with urllib.request.urlopen(f"{uri.rstrip('/')}/health", timeout=5):  # noqa: S310 - the caller saw http(s)
            return ""
    except urllib.error.HTTPError as error:
        # A server that asks for a login is there.
        return "" if error.code in (401, 403) else f"answers {error.code}"
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", error))


def _project() -> Iterator[CheckResult]:
    from mlflow_ngraph.cli.sub_projects import env_manager_on_path

    manager = env_manager_on_path()
    if manager:
        yield CheckResult("project environments", "ok", f"'mlflow run' can make them with {manager}")
    else:
        remedy = "pip install uv, or run projects with --env-manager local"
        yield CheckResult("project environments", "warning", "neither uv, pyenv nor conda found", remedy)


_CHECKS: tuple[Callable[[], Iterator[CheckResult]], ...] = (
    _python,
    _compilers,
    _cxx,
    _torchvision,
    _processors,
    _load,
    _frequency,
    *machine_checks.CHECKS,
    _memory,
    _home,
    _tracking,
    _project,
)
