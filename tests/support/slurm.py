"""A cluster of Slurm on this machine: a controller, and a node for each device."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.lab import Lab
from tests.support.servers import free_port

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")


@pytest.fixture(scope="module")
def slurm() -> Iterator[Path]:
    """The directory of a cluster with nodes ``xeon`` and ``orin``; its commands find it by the environment."""
    if os.geteuid() or not all(map(shutil.which, _PROGRAMS)):
        pytest.skip(f"a cluster of Slurm needs root and {', '.join(_PROGRAMS)}")
    with cluster(("xeon", "orin")) as directory:
        yield directory


@contextmanager
def cluster(nodes: Sequence[str], lab: Lab | None = None) -> Iterator[Path]:
    """A cluster with these nodes.

    Parameters
    ----------
    nodes : Sequence[str]
        Their names.
    lab : Lab | None
        Its hosts are the nodes, and one more, ``head``, has the controller; by default all is on this machine.
    """
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ngs-", ignore_cleanup_errors=True)))
        directory.chmod(0o755)
        (directory / "key").write_bytes(os.urandom(128))
        (directory / "key").chmod(0o400)
        for name in ("munge", "state", "log"):
            (directory / name).mkdir()
        configuration = directory / "slurm.conf"
        configuration.write_text(_configuration(directory, nodes, lab))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("SLURM_CONF", str(configuration))
        munged = [f"--{name}={directory}/munge/{name}" for name in ("socket", "pid-file", "log-file", "seed-file")]
        _start(stack, directory, "munged", "--foreground", "--force", f"--key-file={directory}/key", *munged)
        _await((directory / "munge" / "socket").exists, directory)
        _start(stack, directory, *_on(lab, "head", "slurmctld", "-D", "-f", str(configuration)))
        for node in nodes:
            (directory / node).mkdir()
            _start(stack, directory, *_on(lab, node, "slurmd", "-D", "-N", node, "-f", str(configuration)))
        _await(lambda: _idle() == len(nodes), directory)
        yield directory


def _on(lab: Lab | None, host: str, *command: str) -> list[str]:
    return lab.hosts[host].inside(*command) if lab else list(command)


def _configuration(directory: Path, nodes: Sequence[str], lab: Lab | None) -> str:
    here = socket.gethostname()
    controller = f"head({lab.hosts['head'].address})" if lab else f"{here}(127.0.0.1)"
    at = {node: (node, lab.hosts[node].address) if lab else (here, "127.0.0.1") for node in nodes}
    lines = [
        "ClusterName=ngraph",
        f"SlurmctldHost={controller}",
        f"SlurmctldPort={free_port()}",
        "SlurmUser=root",
        "SlurmdUser=root",
        f"AuthInfo=socket={directory}/munge/socket",
        f"StateSaveLocation={directory}/state",
        f"SlurmdSpoolDir={directory}/%n",
        f"SlurmctldPidFile={directory}/slurmctld.pid",
        f"SlurmdPidFile={directory}/slurmd-%n.pid",
        f"SlurmctldLogFile={directory}/log/slurmctld",
        f"SlurmdLogFile={directory}/log/slurmd-%n",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "SelectType=select/linear",
        "SchedulerType=sched/builtin",
        "ReturnToService=2",
        "MailProg=/bin/true",
        *(
            f"NodeName={node} NodeHostname={host} NodeAddr={address} Port={free_port()} CPUs=1"
            for node, (host, address) in at.items()
        ),
        "PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP",
    ]
    return "\n".join([*lines, ""])


def _start(stack: ExitStack, directory: Path, *command: str) -> None:
    with (directory / "log" / "out").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def end() -> None:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    stack.callback(end)


def _idle() -> int:
    known = subprocess.run(["sinfo", "-h", "-N", "-o", "%t"], capture_output=True, text=True, check=False)
    return known.stdout.split().count("idle")


def _await(condition: Callable[[], bool], directory: Path) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            said = "\n".join(path.read_text(errors="replace")[-1500:] for path in (directory / "log").iterdir())
            pytest.fail(f"the cluster did not start:\n{said}")
        time.sleep(0.2)
