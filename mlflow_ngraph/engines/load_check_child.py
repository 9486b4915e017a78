"""Child process of `engines.load_check`: load an engine, compare its outputs with its probe's, and time it.

A runtime may crash on an engine, or silently compute something else. So an engine is tried in a process of its own
before anybody relies on it. The first request has the engine's specification, upon which the runtime is imported; the
second has its directory, once the files are there and checked.
"""

from __future__ import annotations

import statistics
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlflow_ngraph import parity, process_memory, torchvision_hook
from mlflow_ngraph.compilers.spec import EngineSpec
from mlflow_ngraph.engines import compatibility
from mlflow_ngraph.engines.local_engine import LoadedEngine, prepare
from mlflow_ngraph.engines.package import read_manifest
from mlflow_ngraph.engines.probe import Probe, read_probe
from mlflow_ngraph.errors import EngineError, IncomparableError
from mlflow_ngraph.measure import loop
from mlflow_ngraph.processes.parent import Command, Parent

if TYPE_CHECKING:
    from numpy.typing import NDArray

_WARM_UP = {"window": 5, "tolerance": 0.05, "max_seconds": 3.0, "first_call_s": 0.0}
_MOST_CALLS = 1_000_000


def main() -> None:
    """Try the engine that the parent names."""
    parent = Parent.connect()
    process_memory.keep_freed()  # as studies do by default
    torchvision_hook.install()
    parent.serve(
        {
            "import": _import,
            "probe": lambda command: probe(Path(command["directory"]), float(command["seconds"])),
        }
    )


def _import(command: Command) -> None:
    """Import the runtime of the engine. An import error is reported when the engine is loaded."""
    with suppress(Exception):
        spec = EngineSpec.model_validate_json(command["spec"])
        prepare(compatibility.compiler_of(spec), spec.target)


def probe(directory: Path, seconds: float) -> dict[str, Any]:
    """Compare an engine's outputs for the probe with the baseline's, and time it for ``seconds``.

    Raises `EngineError` if the engine cannot be loaded, or fails.
    """
    package = read_manifest(directory)
    known = read_probe(package.engine)
    if misfit := known.misfit(package.manifest.spec):
        raise EngineError(f"{package.engine} has a probe of another engine: {misfit}")
    with LoadedEngine(package) as engine:
        result = _compared(engine.run(known.inputs), known, engine.precision)
    if seconds and not result["problem"]:
        mode = package.manifest.spec.target.mode
        with LoadedEngine(package, mode=mode) as engine:
            result["measured"] = _measured(engine, known.inputs, seconds)
    return result


def _compared(outputs: list[NDArray[Any]], known: Probe, precision: str) -> dict[str, Any]:
    problem, comparison = known.problem(outputs, precision), None
    with suppress(IncomparableError):
        comparison = asdict(parity.compare(outputs, known.outputs))
    judged = known.judges(precision)
    return {"problem": problem, "judged": judged, "parity": comparison, "precision": precision}


def _measured(engine: LoadedEngine, inputs: list[NDArray[Any]], seconds: float) -> dict[str, float]:
    """Throughput on the probe, by the median as in a round of a study."""
    batch = engine.manifest.spec.probe_batch
    bound = engine.bind(inputs, batch)
    with bound.repeated() as call:
        engine.call(lambda: loop.warm_up(call, **_WARM_UP))  # type: ignore[arg-type] # numbers by name
        taken = engine.call(lambda: loop.take_slice(call, _MOST_CALLS, seconds))
    median_s = statistics.median(taken.durations_ns) / loop.NS
    return {"batch": batch, "throughput": batch * bound.requests / median_s, "repetitions": len(taken.durations_ns)}
