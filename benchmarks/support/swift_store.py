"""An S3-compatible store: OpenStack Swift as Debian packages it (swift-proxy, -account, -container, -object), on this machine."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

ACCESS_KEY, SECRET_KEY = "lab:bench", "kept-in-a-benchmark"
SERVICES = ("account", "container", "object", "proxy")
_START_S = 60.0
_RING_POWER = 4
"""Few partitions: there is one disk."""

_STORE = """
[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
workers = 0
user = {user}
swift_dir = {folder}
devices = {folder}/devices
mount_check = false
log_udp_host = 127.0.0.1
log_udp_port = 9
[pipeline:main]
pipeline = {service}-server
[app:{service}-server]
use = egg:swift#{service}
"""
_PROXY = """
[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
workers = 0
user = {user}
swift_dir = {folder}
log_udp_host = 127.0.0.1
log_udp_port = 9
[pipeline:main]
pipeline = catch_errors healthcheck cache s3api tempauth slo proxy-server
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:healthcheck]
use = egg:swift#healthcheck
[filter:cache]
use = egg:swift#memcache
memcache_servers = 127.0.0.1:9
[filter:s3api]
use = egg:swift#s3api
[filter:slo]
use = egg:swift#slo
[filter:tempauth]
use = egg:swift#tempauth
user_lab_bench = {secret} .admin
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
"""


def missing() -> str:
    """What has to be installed; empty where all is there."""
    lacking = [name for name in SERVICES if shutil.which(f"swift-{name}-server") is None]
    return f"swift-{lacking[0]}-server" if lacking else ""


@contextmanager
def store(folder: Path) -> Iterator[str]:
    """The address of a store with one copy of everything, below a folder whose file system has extended attributes.

    Its user is `ACCESS_KEY` with `SECRET_KEY`.
    """
    (folder / "devices" / "disk").mkdir(parents=True)
    (folder / "swift.conf").write_text(
        "[swift-hash]\nswift_hash_path_suffix = benchmark\n[storage-policy:0]\nname = one\ndefault = yes\n"
    )
    ports = dict(zip(SERVICES, _free_ports(len(SERVICES)), strict=True))
    user = os.environ.get("USER") or "root"
    with ExitStack() as running:
        for service in SERVICES:
            content = (_PROXY if service == "proxy" else _STORE).format(
                service=service, port=ports[service], folder=folder, user=user, secret=SECRET_KEY
            )
            configuration = folder / f"{service}-server.conf"
            configuration.write_text(content)
            if service != "proxy":
                _ring(folder / f"{service}.builder", ports[service])
        for service in SERVICES:
            running.enter_context(_service(service, folder))
        address = f"http://127.0.0.1:{ports['proxy']}"
        for port in ports.values():
            _wait(port)
        yield address


def _ring(builder: Path, port: int) -> None:
    for words in (
        ["create", str(_RING_POWER), "1", "0"],
        ["add", f"r1z1-127.0.0.1:{port}/disk", "1"],
        ["rebalance"],
    ):
        subprocess.run(["swift-ring-builder", str(builder), *words], check=True, stdout=subprocess.DEVNULL)


@contextmanager
def _service(name: str, folder: Path) -> Iterator[None]:
    with (folder / f"{name}.log").open("wb") as log:
        # The store is no program of this environment: it has an interpreter of its own.
        process = subprocess.Popen(
            [f"swift-{name}-server", str(folder / f"{name}-server.conf")],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def _free_ports(count: int) -> list[int]:
    with ExitStack() as opened:
        probes = [opened.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def _wait(port: int) -> None:
    deadline = time.monotonic() + _START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return
