"""An engine that runs jobs as processes of this machine, one after the other on each device, as engines for many machines do."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path

from mlflow_ngraph.errors import FleetAwayError
from mlflow_ngraph_fleet.engine import Engine, Job, KnownJob, State, Status


class LocalEngine(Engine):
    """Jobs in directories below ``root``, with the environment that Ray gives them."""

    name = "local"

    def __init__(self, root: Path) -> None:
        self.root = root
        self.away = False
        """Whether nobody answers."""
        self.silent = False
        """Whether no log is to be had."""
        self.submitted: list[Job] = []
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._cancelled: set[str] = set()
        self._queues: dict[str, threading.Lock] = {}

    def close(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()

    def submit(self, job: Job) -> None:
        self._answer()
        if job.id in {known.id for known in self.submitted}:
            return
        self.submitted.append(job)
        directory = self.root / job.id
        shutil.copytree(job.files, directory)
        for name, path in job.parts.items():
            (directory / name).symlink_to(path)
        threading.Thread(target=self._run, args=(job, directory), daemon=True).start()

    def status(self, job_id: str) -> Status:
        self._answer()
        process = self.processes.get(job_id)
        if process is None:
            if job_id in self._cancelled:
                return Status(State.CANCELLED)
            known = job_id in {job.id for job in self.submitted}
            return Status(State.QUEUED if known else State.LOST)
        code = process.poll()
        if code is None:
            return Status(State.RUNNING)
        if job_id in self._cancelled:
            return Status(State.CANCELLED)
        return Status(State.SUCCEEDED if code == 0 else State.FAILED, f"ended with {code}", code)

    def logs(self, job_id: str) -> str:
        self._answer()
        if self.silent:
            return ""
        path = self.root / job_id / "log"
        return path.read_text() if path.exists() else ""

    def cancel(self, job_id: str) -> None:
        self._answer()
        self._cancelled.add(job_id)
        process = self.processes.get(job_id)
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)

    def recover(self) -> list[KnownJob]:
        return [KnownJob(job.id, job.device, self.status(job.id).state) for job in self.submitted]

    def nodes(self) -> Mapping[str, str]:
        return {}

    def _answer(self) -> None:
        if self.away:
            raise FleetAwayError("the engine does not answer")

    def _run(self, job: Job, directory: Path) -> None:
        with self._queues.setdefault(job.device, threading.Lock()), (directory / "log").open("wb") as log:
            if job.id in self._cancelled:
                return
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "RAY_JOB": "1"}
            environment.pop("PYTHONPATH", None)
            process = subprocess.Popen(
                f"exec {job.command}",
                shell=True,
                cwd=directory,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
            self.processes[job.id] = process
            process.wait()
