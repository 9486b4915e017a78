"""What a study would say of an engine, without its processes and its timing: all in one process that imports torch.

The commands are those that a study gives to its children, in the same order.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mlflow_ngraph.compilers.base import Target
from mlflow_ngraph.compilers.registry import create
from mlflow_ngraph.execute.worker import Worker
from mlflow_ngraph.processes.parent import Parent
from mlflow_ngraph.workloads.base import Init, WorkloadRef
from mlflow_ngraph.workloads.materials import Materials

SECONDS = 60.0
Said = tuple[str, str]
"""A verdict and its reason."""
Verdicts = dict[tuple[str, int, int], Said]
"""By the workload's name, the compiler's place and the batch size."""


class RefusedError(Exception):
    """A command was answered with an error."""

    def __init__(self, verdict: str, reason: str) -> None:
        super().__init__(reason)
        self.said = verdict, reason


def verdicts(
    workloads: Mapping[str, Mapping[str, Any]],
    compilers: Sequence[tuple[str, Mapping[str, Any]]],
    batches: Sequence[int],
    directory: Path,
) -> Verdicts:
    """The verdict on every workload with every compiler.

    Parameters
    ----------
    workloads: names and options, ``target`` among them, and ``scheme`` where that is not ``torch``.
    compilers: names and flags.
    """
    found: Verdicts = {}
    for name, options in workloads.items():
        materials = directory / name
        given = {key: value for key, value in options.items() if key not in ("target", "scheme")}
        ref = WorkloadRef(options.get("scheme", "torch"), options["target"], given)
        try:
            impure = _prepared(ref, materials, batches, compilers)
        except RefusedError as refused:
            found.update({(name, place, batch): refused.said for place in range(len(compilers)) for batch in batches})
            continue
        for place, (compiler, flags) in enumerate(compilers):
            for group in create(compiler, dict(flags)).engines(batches):
                engine = directory / f"{name}-{place}" / "-".join(map(str, group))
                said = _of_an_engine(compiler, flags, materials, engine, group, impure)
                found.update({(name, place, batch): one for batch, one in said.items()})
    return found


def _prepared(
    ref: WorkloadRef, materials: Path, batches: Sequence[int], compilers: Sequence[tuple[str, Mapping[str, Any]]]
) -> str:
    """Why the model is no function of its inputs, or empty."""
    worker = _Asked()
    worker.ask(
        "prepare",
        workload=asdict(ref),
        init=asdict(Init()),
        directory=str(materials),
        batch_sizes=list(batches),
        seed=0,
    )
    formats = {kind for name, flags in compilers for kind in create(name, dict(flags)).formats}
    worker.ask("export", formats=sorted(formats))
    return Materials.read(materials).behaviour.impure


def _of_an_engine(
    compiler: str, flags: Mapping[str, Any], materials: Path, engine: Path, group: Sequence[int], impure: str
) -> dict[int, Said]:
    """What is said of it by batch size."""
    target = asdict(Target(threads=1))
    made = {"compiler": compiler, "flags": dict(flags), "directory": str(engine), "materials": str(materials)}
    worker = _Asked()
    try:
        worker.ask("build", **made, batch_sizes=list(group), target=target, work=str(engine.with_suffix(".work")))
    except RefusedError as refused:
        return dict.fromkeys(group, refused.said)
    if impure:
        return dict.fromkeys(group, ("unverified", impure))
    return {batch: _verified(made, batch, target, engine.with_suffix(".npz")) for batch in group}


def _verified(made: Mapping[str, Any], batch: int, target: Mapping[str, Any], keep: Path) -> Said:
    asked = {**made, "batch": batch, "target": target, "limit_s": SECONDS, "slowdown": 1.0, "keep": str(keep)}
    try:
        result = _Asked().ask("verify", **asked)
    except RefusedError as refused:
        return refused.said
    if result["problem"]:
        return "parity_failed", result["problem"]
    if result["unchecked"] and result["unchecked"] == result["inputs"]:
        return "unverified", result["unchecked_why"]
    return ("unverified", "constant") if result["vacuous"] else ("ok", "")


class _Asked:
    """A worker without a process of its own."""

    def __init__(self) -> None:
        self._replies = io.StringIO()
        self._parent = Parent(io.StringIO(), self._replies)
        self._worker = Worker(self._parent.stage)

    def ask(self, command: str, **fields: Any) -> Any:
        self._replies.seek(0)
        self._replies.truncate()
        self._parent.answer({"command": command, **fields}, self._worker.commands)
        answer = json.loads(self._replies.getvalue().splitlines()[-1])
        if "error" in answer:
            raise RefusedError(answer["error"]["verdict"], answer["error"]["reason"])
        return answer["result"]
