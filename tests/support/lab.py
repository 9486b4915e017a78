"""A lab of hosts on this machine: each has a network, processes, shared memory and an SSH server of its own, and a bridge
between them. It needs root, and stands on Linux's namespaces.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

RAY_PYTHON = "NGRAPH_TEST_RAY_PYTHON"
"""Variable that names an interpreter with ray[default] for the engine of a lab."""
CLIENT = "10.77.0.1"
_BRIDGE = "ngraph-br"
_SSHD = "/usr/sbin/sshd"
_CGROUPS = (
    "if grep -qP '^freezer\\t[1-9]' /proc/cgroups; then mount -t tmpfs none /sys/fs/cgroup; cd /sys/fs/cgroup; "
    "mkdir freezer systemd; mount -t cgroup -o freezer none freezer; mount -t cgroup -o none,name=systemd none systemd; "
    "else mount -t cgroup2 none /sys/fs/cgroup; fi; cd /"
)
"""What the namespace of a network hides, and Slurm asks for."""


@dataclass
class Host:
    """A host of the lab."""

    name: str
    address: str
    directory: Path
    host_key: str
    process: subprocess.Popen[bytes]
    """With all others of the host below it."""

    def node(self, lab: Lab) -> dict[str, Any]:
        """As a description of a fleet has it."""
        return {
            "host": self.address,
            "ssh": f"root@{self.address}",
            "host_key": self.host_key,
            "ssh_options": {"IdentityFile": str(lab.key), "IdentitiesOnly": "yes"},
            "engine_python": lab.engine_python,
            "environment": {"NGRAPH_LOCK_DIR": str(self.directory)},
        }

    def inside(self, *command: str) -> list[str]:
        """A command among the processes of the host, as it is given here."""
        inner = subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True, check=True)
        return ["nsenter", "--target", inner.stdout.split()[0], "--net", "--mount", "--pid", "--uts", "--", *command]

    def run(self, *command: str) -> str:
        """What a command prints that is run there."""
        return subprocess.run(self.inside(*command), capture_output=True, text=True, check=False).stdout

    def restart(self) -> None:
        """Take its power away, and give it back: no process survives, nor what is in memory."""
        _end(self.process)
        self.process = _boot(self.name, self.address, self.directory)

    def link(self, state: str) -> None:
        """Cut or mend its connection: ``up`` or ``down``."""
        _ip("link", "set", f"ng-{self.name}", state)


@dataclass
class Lab:
    """Hosts beside each other."""

    directory: Path
    key: Path
    engine_python: str
    hosts: dict[str, Host] = field(default_factory=dict)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """A head and two devices."""
    if os.geteuid() or shutil.which("ip") is None or not Path(_SSHD).exists():
        pytest.skip("a lab of hosts needs root, ip and sshd")
    if find_spec("ray") is None:
        pytest.skip("the client of a lab needs ray: pip install './plugins/fleet[ray]'")
    python = engine_python()
    if not python:
        pytest.skip(f"a lab needs a Python with ray[default]: name one in {RAY_PYTHON}")
    with made(("head", "xeon", "orin"), python) as running:
        yield running


def engine_python() -> str:
    """An interpreter with ray[default], or empty text."""
    here = find_spec("aiohttp_cors") and find_spec("ray")
    return os.environ.get(RAY_PYTHON) or (sys.executable if here else "")


@contextmanager
def made(names: Sequence[str], engine_python: str) -> Iterator[Lab]:
    """A lab with hosts of these names.

    Parameters
    ----------
    names : Sequence[str]
        Of the hosts.
    engine_python : str
        Has the engine.
    """
    with ExitStack() as stack:
        # Not below pytest's own directory: names of sockets are short.
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ngl-", ignore_cleanup_errors=True)))
        lab = Lab(directory, directory / "key", engine_python)
        _keygen(lab.key)
        try:
            _ip("link", "add", _BRIDGE, "type", "bridge")
        except subprocess.CalledProcessError:
            pytest.skip("network namespaces are not allowed here, or another lab is up")
        stack.callback(_ip, "link", "del", _BRIDGE)
        _ip("addr", "add", f"{CLIENT}/24", "dev", _BRIDGE)
        _ip("link", "set", _BRIDGE, "up")
        for number, name in enumerate(names, 10):
            lab.hosts[name] = stack.enter_context(_host(lab, name, f"10.77.0.{number}"))
        yield lab


@contextmanager
def _host(lab: Lab, name: str, address: str) -> Iterator[Host]:
    directory, space = lab.directory / name, f"ngraph-{name}"
    (directory / "data").mkdir(parents=True)
    directory.chmod(0o755)
    _keygen(directory / "host_key")
    (directory / "sshd_config").write_text(
        f"HostKey {directory}/host_key\nAuthorizedKeysFile {lab.key}.pub\nStrictModes no\nPasswordAuthentication no\n"
        f"PermitRootLogin prohibit-password\nUsePAM no\nPidFile none\n"
        f"SetEnv XDG_DATA_HOME={directory}/data NGRAPH_LOCK_DIR={directory}\n"
    )
    _ip("netns", "add", space)
    try:
        _ip("-n", space, "link", "set", "lo", "up")
        _ip("link", "add", f"ng-{name}", "type", "veth", "peer", "name", "eth0", "netns", space)
        _ip("link", "set", f"ng-{name}", "master", _BRIDGE, "up")
        _ip("-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
        _ip("-n", space, "link", "set", "eth0", "up")
        key = " ".join((directory / "host_key.pub").read_text().split()[:2])
        host = Host(name, address, directory, key, _boot(name, address, directory))
        try:
            yield host
        finally:
            _end(host.process)
    finally:
        _ip("netns", "del", space)


def _boot(name: str, address: str, directory: Path) -> subprocess.Popen[bytes]:
    """Start the processes of a host; returns when it answers."""
    script = (
        f"hostname {name}; mkdir -p /tmp/ray /run/sshd; mount -t tmpfs tmpfs /tmp/ray; {_CGROUPS}; "
        f"mount -t tmpfs -o size=512m tmpfs /dev/shm; exec {_SSHD} -D -e -f {directory}/sshd_config"
    )
    alone = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--uts", "--mount-proc"]
    with (directory / "sshd.log").open("ab") as log:
        process = subprocess.Popen(
            ["ip", "netns", "exec", f"ngraph-{name}", *alone, "sh", "-c", script],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        _await(address, 22, directory / "sshd.log")
    except BaseException:
        _end(process)
        raise
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _keygen(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def _await(address: str, port: int, log: Path) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex((address, port)) == 0:
                return
        time.sleep(0.1)
    pytest.fail(f"no SSH server at {address}: {log.read_text()[-1000:]}")
