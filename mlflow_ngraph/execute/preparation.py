"""Preparation: handle of the child that builds a workload, runs the baseline on it, and exports it on demand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from mlflow_ngraph.execute import worker
from mlflow_ngraph.execute.plan import WorkloadPlan
from mlflow_ngraph.execute.session import Session
from mlflow_ngraph.processes import environment
from mlflow_ngraph.processes.child import Child

Materials = dict[str, Any]
"""The content of ``materials.json``."""


class Preparation:
    """The child that builds a workload once.

    A caller waits on `child`. `finish` then returns the result or raises `ChildFailure`.
    """

    def __init__(self, session: Session, workload: WorkloadPlan) -> None:
        self._session = session
        self._ref = str(workload.ref)
        self._workload = workload
        self._directory = session.paths.materials(self._ref)
        self._seconds = 0.0
        name = f"prepare-{self._directory.name}-{session.number}"
        env = environment.of_threads(session.plan.threads, session.paths.scratch(name), patient=True, logins=True)
        log, left = session.paths.log(name), session.time.until_end
        self.child = Child(worker.__name__, env, log, warden=session.warden, forked=session.forks, left=left)

    def begin(self, batch_sizes: Sequence[int]) -> None:
        """Build the model and run the baseline on seeded inputs."""
        study = self._session.plan.study
        self._begin(
            "prepare",
            workload=asdict(self._workload.ref),
            init=asdict(study.init),
            directory=str(self._directory),
            batch_sizes=list(batch_sizes),
            seed=study.seed,
        )

    def begin_export(self, formats: Sequence[str]) -> None:
        """Export the model in the formats of the compilers."""
        self._begin("export", formats=list(formats))

    def finish(self) -> Materials:
        """Return the materials made so far."""
        self._seconds += self.child.finish()["seconds"]
        return self._read()

    def close(self, beside: int) -> None:
        """End the child and write the result to the journal, if there is one.

        ``beside`` is the largest number of concurrent jobs.
        """
        self.child.close()
        journal = self._session.journal
        if self._seconds:
            journal.append(
                "workload_prepared",
                workload=self._ref,
                seconds=self._seconds,
                beside=beside,
                materials=self._read(),
            )
        journal.append(
            "process_ended",
            purpose="prepare",
            workload=self._ref,
            started_at=self.child.started_at,
            cpu_s=self.child.cpu_s,
        )

    def _begin(self, command: str, **fields: Any) -> None:
        self.child.begin(
            command,
            self._session.plan.study.limits.prepare_seconds,
            on_stage=lambda stage: self._session.journal.tell(
                "stage", workload=self._ref, stage=stage, purpose="prepare"
            ),
            **fields,
        )

    def _read(self) -> Materials:
        content: Materials = json.loads((self._directory / "materials.json").read_text(encoding="utf-8"))
        return content
