"""A fleet on the hosts of a lab, used by the commands that a user types."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.support.lab import CLIENT, Host, Lab
from tests.support.servers import OURS, serve

ORIN_PYTHON = "NGRAPH_TEST_ORIN_PYTHON"
"""Variable that names another interpreter with the compilers of ``smoke``, such as one of another version, for ``orin``."""


@dataclass(frozen=True)
class Fleet:
    """A fleet, with a tracking server."""

    file: Path
    tracking_uri: str
    environment: dict[str, str]
    lab: Lab

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Begin a verb."""
        return subprocess.Popen(
            [sys.executable, "-m", "mlflow_ngraph", *words],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.file.parent,
        )

    def run(self, *words: str, seconds: float = 600) -> subprocess.CompletedProcess[str]:
        """Run a verb as a user does."""
        command = [sys.executable, "-m", "mlflow_ngraph", *words]
        return subprocess.run(
            command,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            cwd=self.file.parent,
            check=False,
        )


@contextmanager
def described(lab: Lab, home: Path, *, slurm: bool = False) -> Iterator[Fleet]:
    """A fleet of ``xeon``, which sees the tracking server, and ``orin``, which does not; it is not up yet.

    Parameters
    ----------
    lab : Lab
        Its hosts.
    home : Path
        With the database of the tracking server; for whatever the client keeps.
    slurm : bool
        Whether its engine is the cluster of Slurm on the hosts, which runs already, and not Ray.
    """
    with serve(home, f"sqlite:///{home / 'mlflow.db'}", host=CLIENT) as address:
        shared = {
            name: {
                **(_of_slurm(lab.hosts[name]) if slurm else lab.hosts[name].node(lab)),
                "python": python,
                "home": str(lab.hosts[name].directory / "data" / "mlflow-ngraph"),
            }
            for name, python in (("xeon", sys.executable), ("orin", os.environ.get(ORIN_PYTHON, sys.executable)))
        }
        content = {
            "name": "lab",
            **(
                {"engine": "slurm", "shared": str(lab.directory / "shared")}
                if slurm
                else {"token_file": "lab.token", "head": lab.hosts["head"].node(lab)}
            ),
            "devices": {
                "xeon": {**shared["xeon"], "profile": "xeon", "tracking_uri": address},
                "orin": {**shared["orin"], "profile": "host"},
            },
        }
        file = home / "fleet.yaml"
        file.write_text(yaml.safe_dump(content))
        environment = {name: value for name, value in os.environ.items() if name not in OURS}
        environment |= {
            "NGRAPH_HOME": str(home / "home"),
            "MLFLOW_TRACKING_URI": address,
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "PYTHONPATH": os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")]),
        }
        yield Fleet(file, address, environment, lab)


def _of_slurm(host: Host) -> dict[str, Any]:
    return {"host": host.name, "env": {"NGRAPH_LOCK_DIR": str(host.directory)}}


def succeeds(done: subprocess.CompletedProcess[str]) -> str:
    """What a command printed; ends a driver in which it failed."""
    if done.returncode:
        sys.exit(done.stderr + done.stdout)
    return done.stdout


def pids(host: Host, program: str) -> list[str]:
    """Processes of a host with this text in their command."""
    return [
        line.split()[0]
        for line in host.run("ps", "-ww", "-eo", "pid,args").splitlines()
        if program in line and "ps -ww" not in line
    ]
