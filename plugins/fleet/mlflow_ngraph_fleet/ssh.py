"""OpenSSH with the user's keys and pinned host keys: run a command on a node, or open a tunnel to its port.

Nothing is accepted on first use, no agent is forwarded, and nobody is asked for a password.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mlflow_ngraph.errors import DependencyError, FleetAwayError, FleetError
from mlflow_ngraph_fleet.description import Node

CONNECT_SECONDS = 10
_PLAIN = (
    ("Host key verification failed", "its host key is not known, or another one: compare it, and pin it as host_key"),
    (
        "REMOTE HOST IDENTIFICATION HAS CHANGED",
        "its host key has changed: somebody may stand between; compare it first",
    ),
    ("Permission denied", "it does not take any of your keys"),
    ("Could not resolve", "there is no such host"),
    ("Connection refused", "nothing listens there"),
    ("timed out", "no answer in time"),
    ("No route to host", "there is no way to it"),
)
"""Messages of OpenSSH, each with its meaning here."""


def run(node: Node, command: str, *, text: str, seconds: float) -> str:
    """Run a command on a node, and return its output.

    Parameters
    ----------
    node : Node
        With ``ssh``.
    command : str
        A line of the node's shell; everybody there can read it while it runs.
    text : str
        Its standard input.

    Raises
    ------
    FleetAwayError
        The node is not reached, in one line.
    FleetError
        The command fails.
    """
    with _options(node) as options:
        try:
            done = subprocess.run(
                [_program(), *options, "--", node.ssh, command],
                input=text,
                capture_output=True,
                text=True,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise FleetAwayError(f"{node.ssh}: no answer within {seconds:.0f} s") from None
    if done.returncode == 255:
        raise FleetAwayError(f"{node.ssh}: {_reason(done.stderr)}")
    if done.returncode:
        raise FleetError(f"{node.ssh}: {_reason(done.stderr or done.stdout)}")
    return done.stdout


class Tunnel:
    """A port of this machine's loopback that leads to one of a node's loopback.

    Parameters
    ----------
    node : Node
        With ``ssh``.
    """

    def __init__(self, node: Node, port: int) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self._node = node
        self._forward = f"127.0.0.1:{self.port}:127.0.0.1:{port}"
        self._process: subprocess.Popen[str] | None = None

    def open(self) -> None:
        """Make the connection, unless it is there.

        Raises
        ------
        FleetAwayError
            The node is not reached.
        """
        if self._process is not None and self._process.poll() is None:
            return
        with _options(self._node) as options:
            keeping = ["-N", "-o", "ExitOnForwardFailure=yes", "-o", "ServerAliveInterval=10", "-L", self._forward]
            self._process = subprocess.Popen(
                [_program(), *options, *keeping, "--", self._node.ssh],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,  # an interrupt ends studies first, and they are reached through this
            )
            self._await(self._process)

    def close(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.communicate()

    def _await(self, process: subprocess.Popen[str]) -> None:
        deadline = time.monotonic() + CONNECT_SECONDS + 2
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise FleetAwayError(f"{self._node.ssh}: {_reason(process.communicate()[1])}")
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        self.close()
        raise FleetAwayError(f"{self._node.ssh}: no tunnel within {CONNECT_SECONDS} s")


@contextmanager
def _options(node: Node) -> Iterator[list[str]]:
    """Options of every connection; the pinned key is in a file of its own."""
    settings = {
        "BatchMode": "yes",
        "StrictHostKeyChecking": "yes",
        "ForwardAgent": "no",
        "ConnectTimeout": str(CONNECT_SECONDS),
        "LogLevel": "ERROR",
        **node.ssh_options,
    }
    with tempfile.TemporaryDirectory() as directory:
        if node.host_key:
            known = Path(directory) / "known_hosts"
            known.write_text(f"{_ALIAS} {node.host_key}\n", encoding="utf-8")
            settings |= {"HostKeyAlias": _ALIAS, "UserKnownHostsFile": str(known), "GlobalKnownHostsFile": "/dev/null"}
        yield ["-T", *(part for name, value in settings.items() for part in ("-o", f"{name}={value}"))]


_ALIAS = "mlflow-ngraph-node"
"""Alias of the host in the file with its pinned key, independent of its address."""


def _program() -> str:
    program = shutil.which("ssh")
    if program is None:
        raise DependencyError("a fleet is reached with OpenSSH: install its client, ssh")
    return program


def _reason(text: str) -> str:
    for part, plain in _PLAIN:
        if part in text:
            return plain
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "the connection was closed"
