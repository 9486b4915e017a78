"""SlurmEngine: submits, follows and cancels a fleet's jobs by Slurm's commands, over a shared directory.

A job lies in a directory of its own there, with its log; what needs to travel only once lies beside it. Each job has its node for
itself, and is not started again by Slurm: whether it goes on is for the client to say.
"""

from __future__ import annotations

import getpass
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from mlflow_ngraph.errors import DependencyError, FleetAwayError, FleetError
from mlflow_ngraph_fleet.description import Fleet
from mlflow_ngraph_fleet.engine import Engine, Job, KnownJob, State, Status

_SECONDS = 30
_LOG = "log"
_QUEUED = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "RESIZING", "SUSPENDED", "REQUEUE_HOLD"})
_RUNNING = frozenset({"RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING", "STOPPED"})
_STATES = {"COMPLETED": State.SUCCEEDED, "CANCELLED": State.CANCELLED}
"""Every other state is a failure."""
_AWAY = ("Unable to contact slurm controller", "Socket timed out", "Connection refused", "Zero Bytes were transmitted")


class SlurmEngine(Engine):
    """The jobs of a cluster of Slurm.

    Parameters
    ----------
    fleet : Fleet
        With ``shared``; the host of a device is the name of its node.

    Raises
    ------
    DependencyError
        Slurm's commands are not here.
    FleetError
        The shared directory cannot be written.
    """

    name = "slurm"

    def __init__(self, fleet: Fleet) -> None:
        if shutil.which("sbatch") is None:
            raise DependencyError("engine slurm needs Slurm's commands here: run this where sbatch is")
        self._fleet = fleet
        self._jobs = Path(fleet.shared).expanduser() / "mlflow-ngraph"
        try:
            for folder in (self._jobs, self._jobs / "parts"):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise FleetError(f"shared directory {fleet.shared}: {error.strerror}") from None

    def close(self) -> None:
        return

    def submit(self, job: Job) -> None:
        directory = self._jobs / job.id
        if self.status(job.id).state is not State.LOST:
            return
        shutil.copytree(job.files, directory, dirs_exist_ok=True)
        for name, path in job.parts.items():
            kept = self._jobs / "parts" / name
            if not kept.is_dir():
                making = kept.with_name(f".{name}.{job.id}")
                shutil.copytree(path, making, dirs_exist_ok=True)
                try:
                    making.rename(kept)
                except OSError:  # somebody else was faster
                    shutil.rmtree(making, ignore_errors=True)
            (directory / name).unlink(missing_ok=True)
            (directory / name).symlink_to(kept)
        # Nothing else of this environment goes along: it may hold the client's own secrets.
        script = f"#!/bin/sh\nexec {job.command}\n"
        where = ["--nodelist", self._fleet.devices[job.device].host]
        where += ["--partition", self._fleet.partition] if self._fleet.partition else []
        _run(
            *(
                "sbatch",
                "--parsable",
                "--exclusive",
                "--no-requeue",
                "--export=HOME,PATH,LANG,USER",
                "--job-name",
                job.id,
                "--comment",
                job.device,
            ),
            *("--chdir", str(directory), "--output", str(directory / _LOG), "--open-mode", "append", *where),
            text=script,
        )

    def status(self, job_id: str) -> Status:
        # Of several of one name the newest: whoever submitted twice at once did so for nothing.
        known = _run("squeue", "--noheader", "--states", "all", "--name", job_id, "--sort=-i", "--format", "%T|%r")
        if known.strip():
            state, _, reason = known.splitlines()[0].strip().partition("|")
            known_state = _state(state)
            code = 0 if known_state is State.SUCCEEDED else None
            return Status(known_state, "" if reason == "None" else reason, code)
        # Slurm forgets jobs some minutes after their end.
        if (self._jobs / job_id / _LOG).exists():
            return Status(State.FAILED, "ended, and Slurm has forgotten how")
        return Status(State.LOST, "Slurm knows nothing of it")

    def logs(self, job_id: str) -> str:
        try:
            return (self._jobs / job_id / _LOG).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def cancel(self, job_id: str) -> None:
        # To the batch script itself, which has become the study; by force where that does not end it is Slurm's default.
        state = self.status(job_id).state
        if state is State.QUEUED:
            _run("scancel", "--name", job_id)
        elif state is State.RUNNING:
            _run("scancel", "--batch", "--signal", "TERM", "--name", job_id)

    def recover(self) -> list[KnownJob]:
        known = _run("squeue", "--noheader", "--states", "all", "--user", getpass.getuser(), "--format", "%j|%k|%T")
        rows = [line.strip().split("|") for line in known.splitlines() if line.strip()]
        return [KnownJob(name, device, _state(state)) for name, device, state in rows]

    def nodes(self) -> Mapping[str, str]:
        hosts = {device.host: name for name, device in self._fleet.devices.items()}
        known = _run("sinfo", "--noheader", "--Node", "--format", "%N|%t")
        rows = [line.strip().split("|") for line in known.splitlines() if line.strip()]
        return {hosts[node]: state for node, state in rows if node in hosts}


def _state(text: str) -> State:
    word = text.split(maxsplit=1)[0].rstrip("+")
    if word in _QUEUED:
        return State.QUEUED
    if word in _RUNNING:
        return State.RUNNING
    return _STATES.get(word, State.FAILED)


def _run(*command: str, text: str | None = None) -> str:
    """Run a command and return its output.

    Raises
    ------
    FleetAwayError
        Slurm does not answer.
    FleetError
        It refuses.
    """
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise FleetAwayError(f"Slurm does not answer: {command[0]} took more than {_SECONDS} s") from None
    if not done.returncode:
        return done.stdout
    said = " ".join(done.stderr.split())
    if any(part in said for part in _AWAY):
        raise FleetAwayError(f"Slurm does not answer: {said[:200]}")
    if "Invalid job id" in said or "Invalid job name" in said:
        return ""
    raise FleetError(f"Slurm refuses: {said[:300] or f'{command[0]} ended with {done.returncode}'}")
