"""Preparing a workload in a child process, which lives until it is known which exports are needed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from mlflow_ngraph.engines import environment
from mlflow_ngraph.execute.child import Child, Warden
from mlflow_ngraph.execute.journal import Journal
from mlflow_ngraph.execute.places import Places
from mlflow_ngraph.execute.plan import StudyPlan, WorkloadPlan
from mlflow_ngraph.execute.time_budget import TimeBudget

Materials = dict[str, Any]
"""The content of ``materials.json``."""


class Preparation:
    """The child that builds a workload once. Every method raises `ChildFailure` when it has no result.

    Parameters
    ----------
    time : TimeBudget | None
        What ends the child when nothing of it is left; None lets it take what the study's limits allow.
    """

    def __init__(
        self,
        plan: StudyPlan,
        workload: WorkloadPlan,
        places: Places,
        journal: Journal,
        warden: Warden,
        session: int,
        time: TimeBudget | None = None,
    ) -> None:
        self._plan = plan
        self._workload = workload
        self._journal = journal
        self._directory = places.materials(str(workload.ref))
        self._seconds = 0.0
        name = f"prepare-{self._directory.name}-{session}"
        env = environment.of_threads(plan.threads, places.scratch(name))
        self._child = Child(name, env, places.log(name), warden, (time or TimeBudget()).left_at_most)

    def begin(self, batch_sizes: Sequence[int]) -> None:
        """Build the model, and run the baseline on seeded inputs at ``batch_sizes``; `built` waits for it."""
        study = self._plan.study
        self._begin(
            "prepare",
            workload=asdict(self._workload.ref),
            init=asdict(study.init),
            directory=str(self._directory),
            batch_sizes=list(batch_sizes),
            seed=study.seed,
        )

    def built(self) -> Materials:
        """Wait until the model is built and the baseline has run."""
        return self._finish()

    def export(self, formats: Sequence[str]) -> Materials:
        """Export the model for compilers that start from ``formats``."""
        self._begin("export", formats=list(formats))
        return self._finish()

    def close(self) -> None:
        """End the child, and put what came of it into the journal, if anything did."""
        self._child.close()
        if self._seconds:
            self._journal.append(
                "workload_prepared", workload=str(self._workload.ref), seconds=self._seconds, materials=self._read()
            )

    def _begin(self, command: str, **fields: Any) -> None:
        ref = str(self._workload.ref)
        self._child.begin(
            command,
            self._plan.study.limits.prepare_seconds,
            on_stage=lambda stage: self._journal.tell("stage", workload=ref, stage=stage),
            **fields,
        )

    def _finish(self) -> Materials:
        self._seconds += self._child.finish()["seconds"]
        return self._read()

    def _read(self) -> Materials:
        content: Materials = json.loads((self._directory / "materials.json").read_text(encoding="utf-8"))
        return content
