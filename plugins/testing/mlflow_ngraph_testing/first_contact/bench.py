"""Bench: the device and folder of a first contact; runs commands and studies there, and reads studies' records."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import yaml

from mlflow_ngraph.compilers.registry import COMPILERS
from mlflow_ngraph.devices.base import DeviceProfile
from mlflow_ngraph.errors import DependencyError, JournalError
from mlflow_ngraph.execute import replay
from mlflow_ngraph.execute.record import StudyRecord
from mlflow_ngraph_testing.first_contact.command import NGRAPH, CommandResult, RunningCommand, started

Form = Literal["short", "full"]

BASELINE = "identity"


@dataclass(frozen=True)
class Bench:
    """The device under test, and the folder of the report."""

    profile: DeviceProfile
    folder: Path
    """Everything is written here."""
    form: Form

    @cached_property
    def missing(self) -> Mapping[str, tuple[str, str]]:
        """Compilers of the profile that cannot run here, by name, each with the reason and the remedy."""
        return {name: why for name in self.profile.compilers if (why := _missing(name)) is not None}

    @cached_property
    def compilers(self) -> Sequence[str]:
        """Those that can run here on the profile's accelerator, the baseline first, those of other packages last."""
        names = [*self.profile.compilers, *(name for name in COMPILERS.names() if name not in self.profile.compilers)]
        return [
            name
            for name in names
            if _missing(name) is None and self.profile.accelerator in COMPILERS.get(name).accelerators
        ]

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables for commands: studies go to the folder; no tracking server, no downloads."""
        others = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
        return {**others, "NGRAPH_HOME": str(self.folder / "home"), "HF_HUB_OFFLINE": "1", "NO_COLOR": "1"}

    def started(self, name: str, command: Sequence[str]) -> AbstractContextManager[RunningCommand]:
        """A command that runs in the folder while a block does."""
        return started(command, self.logs, name, self.folder, self.environment)

    def run(self, name: str, command: Sequence[str], seconds: float) -> CommandResult:
        """Run a command in the folder, under a time limit."""
        with self.started(name, command) as running:
            return running.wait(seconds)

    def ask(self, verb: str, seconds: float) -> Any:
        """Answer of a verb of the command line, from JSON.

        Raises
        ------
        TimeoutError
            It has no answer yet.
        RuntimeError
            It gives no answer.
        """
        ended = self.run(verb.replace(" ", "-"), [*NGRAPH, *verb.split(), "--json"], seconds)
        if ended.code is None:
            raise TimeoutError(f"mlflow-ngraph {verb} {ended.how}")
        try:
            return json.loads(ended.out)
        except ValueError:
            raise RuntimeError(f"mlflow-ngraph {verb} {ended.how}") from None

    def benchmark(self, study: str, *options: str, offline: bool = True) -> list[str]:
        """The command that runs a study for the device."""
        where = ["--offline"] if offline else ["--tracking-uri", f"sqlite:///{self.folder / 'mlflow.db'}"]
        return [*NGRAPH, "benchmark", study, "--device", self.profile.name, *where, *options]

    def write_study(self, name: str, content: Mapping[str, Any]) -> str:
        """Write the file of a study, and return its path."""
        path = self.folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(dict(content), sort_keys=False), encoding="utf-8")
        return str(path)

    def directory(self, study: str) -> Path | None:
        """The newest one of a study; None where it has not begun."""
        journals = sorted((self.folder / "home" / "studies").glob(f"{study}-*/journal.jsonl"), key=_changed)
        return journals[-1].parent if journals else None

    def record(self, study: str) -> StudyRecord | None:
        """Record of the newest run of a study; None where it has not begun."""
        directory = self.directory(study)
        if directory is None:
            return None
        try:
            return replay.load(directory)
        except JournalError:
            return None


def _changed(path: Path) -> float:
    return path.stat().st_mtime


def _missing(name: str) -> tuple[str, str] | None:
    """Reason why a compiler cannot run here, and the remedy; None if it can."""
    try:
        availability = COMPILERS.get(name).availability()
    except DependencyError as error:
        return str(error), ""
    return None if availability.available else (availability.reason, availability.hint)
