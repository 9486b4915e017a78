"""Start the child `process` that finds an engine's first wrong operator; its `Question`, `Answer` and time limits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import Any

from mlflow_ngraph.errors import NGraphError
from mlflow_ngraph.processes import environment
from mlflow_ngraph.processes.child import Child, ChildFailure

SECONDS = 600.0
"""Seconds after which the smallest model so far is the answer."""
LIMIT_S = 120.0
"""Time limit of one compilation with its run, in seconds."""


@dataclass(frozen=True)
class Question:
    """A wrong engine, as it was compiled in a study."""

    workload: Mapping[str, Any]
    """The fields of its `WorkloadRef`."""
    init: Mapping[str, Any]
    seed: int
    digest: str
    """Digest of the measured model; empty if unknown."""
    batch: int
    compiler: str
    flags: Mapping[str, Any]
    target: Mapping[str, Any]
    """The fields of its `Target`."""
    kept: str
    """The file of inputs for which engine and baseline disagreed; empty for those that it was timed on."""
    directory: str
    """Directory for the smallest model."""
    seconds: float = SECONDS
    limit_s: float = LIMIT_S


@dataclass
class Answer:
    """Result of the search."""

    nodes: int = 0
    """Nodes of the whole model."""
    output: str = ""
    """Wrong output of the model; empty where none is."""
    wrong: str = ""
    """Description of the error."""
    right: str = ""
    """Reason why no output is wrong; empty where one is."""
    operator: str = ""
    """First wrong operator."""
    node: str = ""
    """Its node."""
    node_output: str = ""
    """First wrong value of the model."""
    smallest: str = ""
    """Description of the error in the smallest model."""
    together: list[str] = field(default_factory=list)
    """The operators of the smallest model, the wrong one among them."""
    directory: str = ""
    files: list[str] = field(default_factory=list)
    reproduced: bool | None = None
    """True if the script shows it without this package; None where there is no script for the compiler."""
    remarks: list[str] = field(default_factory=list)
    tries: int = 0
    """Models that were compiled."""
    seconds: float = 0.0
    out_of_time: bool = False
    """True if a smaller model may be found with more time."""


def ask(question: Question) -> Answer:
    """Search in a child process. Raises `NGraphError` if the search fails, with the reason."""
    env = environment.of_threads(question.target["threads"], patient=True, logins=True)
    with closing(Child("mlflow_ngraph_bisect.process", env)) as child:
        try:
            return Answer(**child.request("look", math.inf, question=asdict(question)))
        except ChildFailure as failure:
            if not child.closed:
                raise NGraphError(failure.reason) from None
            ended = f"the process that looked for the first wrong operator has ended: {failure.reason}"
            raise NGraphError(f"{ended}: {failure.last_line}") from None
