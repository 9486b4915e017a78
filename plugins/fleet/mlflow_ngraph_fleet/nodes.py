"""Start, inspect and stop Ray on a fleet's machines through OpenSSH; make its token, and commands to type by hand."""

from __future__ import annotations

import json
import os
import secrets
import shlex
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from mlflow_ngraph.errors import DependencyError, FleetError
from mlflow_ngraph_fleet import ssh
from mlflow_ngraph_fleet.description import Device, Fleet, Node, read_secret
from mlflow_ngraph_fleet.node_agent import QUIET, WITHOUT
from mlflow_ngraph_fleet.ray_engine import INSTALL, token_path

HEAD = "head"
_SECONDS: Mapping[str, float] = {"up": 900.0, "down": 180.0, "status": 60.0}
_AT_ONCE = 16


@dataclass(frozen=True)
class Machine:
    """A machine, and the configuration of its engine."""

    name: str
    node: Node
    config: Mapping[str, Any]
    """Configuration of the program there; nothing secret."""


@dataclass(frozen=True)
class Answer:
    """Answer of a machine to a request."""

    machine: Machine
    content: Mapping[str, Any]
    problem: str = ""


def machines(fleet: Fleet, names: Sequence[str] | None = None) -> list[Machine]:
    """Those of the fleet, the head first; a device that shares the head's machine is part of it.

    Parameters
    ----------
    names : Sequence[str] | None
        Only these devices, and no head.

    Raises
    ------
    DependencyError
        The version of Ray for the nodes is unknown.
    """
    head = fleet.head
    if head is None:
        return [
            Machine(name, node, _config(fleet, name, node, [name], "device")) for name, node in fleet.devices.items()
        ]
    with_head = [name for name, device in fleet.devices.items() if device.host == head.host]
    listed = []
    if names is None:
        about = {"ports": [head.port, head.dashboard_port], "port": head.port, "dashboard_port": head.dashboard_port}
        listed.append(Machine(HEAD, head, {**_config(fleet, HEAD, head, with_head, HEAD), **about}))
    for name, device in fleet.devices.items():
        if name not in with_head and (names is None or name in names):
            listed.append(Machine(name, device, _config(fleet, name, device, [name], "device")))
    return listed


def _config(fleet: Fleet, name: str, node: Node, devices: list[str], role: str) -> dict[str, Any]:
    head = fleet.head
    described = next((fleet.devices[device] for device in devices), None)
    return {
        "mark": f"{fleet.name}/{name}",
        "role": role,
        "host": node.host,
        "devices": devices,
        "head": "" if head is None else f"{head.host}:{head.port}",
        "engine_python": node.engine_python,
        "environment": node.environment,
        "ray": "" if node.engine_python else _ray_version(fleet),
        "ports": [],
        "python": described.python if isinstance(described, Device) else "",
        "home": described.home if isinstance(described, Device) else "",
    }


def ask(machines: Sequence[Machine], action: str, **more: Any) -> Iterator[Answer]:
    """Do the same on several machines at once; those that SSH does not reach are left out.

    Parameters
    ----------
    action : str
        ``up``, ``down`` or ``status``.
    **more : Any
        More facts for the action, such as the token.

    Yields
    ------
    Answer
        One a machine, in order.
    """
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        yield from pool.map(lambda machine: _asked(machine, action, more), [each for each in machines if each.node.ssh])


def _asked(machine: Machine, action: str, more: Mapping[str, Any]) -> Answer:
    try:
        python = shlex.quote(machine.node.engine_python or "python3")
        said = ssh.run(
            machine.node, f"exec {python} -", text=program(machine, action, **more), seconds=_SECONDS[action]
        )
        content = json.loads(said.strip().splitlines()[-1])
    except FleetError as error:
        return Answer(machine, {}, str(error))
    except (ValueError, IndexError):
        return Answer(machine, {}, f"{machine.node.ssh}: no answer of Python 3 there")
    return Answer(machine, content, str(content.get("problem", "")))


def program(machine: Machine, action: str, **more: Any) -> str:
    """Program for a machine, with its configuration.

    Parameters
    ----------
    **more : Any
        As of `ask`.
    """
    source = (resources.files("mlflow_ngraph_fleet") / "node_agent.py").read_text(encoding="utf-8")
    about = json.dumps({**machine.config, **more, "action": action})
    return f"{source}\nCONFIG.update(json.loads({about!r}))\nmain()\n"


def by_hand(machine: Machine, token: Path) -> str:
    """Commands to type on a machine that SSH does not reach.

    Parameters
    ----------
    machine : Machine
        One without ``ssh``.
    token : Path
        File of this machine with the token, which has to be there too.
    """
    config = machine.config
    shared = (
        f"ray start --block {' '.join(WITHOUT)} --num-cpus=1 --num-gpus=0 --object-store-memory=80000000 "
        f"--node-ip-address={config['host']} --resources={shlex.quote(json.dumps(dict.fromkeys(config['devices'], 1)))}"
    )
    if config["role"] == HEAD:
        place = f"--head --port={config['port']} --dashboard-host=127.0.0.1 --dashboard-port={config['dashboard_port']}"
    else:
        place = f"--address={config['head']}"
    variables = (
        f"NGRAPH_FLEET={config['mark']} RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$HOME/{token.name} RAY_USAGE_STATS_ENABLED=0 "
        "RAY_worker_niceness=0 RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL=minor "
        + " ".join(f"{name}={value}" for name, value in QUIET.items())
    )
    return f"env {variables} {shared} {place}"


def token(fleet: Fleet) -> str:
    """Token of the clients, made where there is none."""
    path = token_path(fleet)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(secrets.token_hex(32) + "\n")
    return read_secret(path)


def _ray_version(fleet: Fleet) -> str:
    if fleet.ray:
        return fleet.ray
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("ray")
    except PackageNotFoundError:
        raise DependencyError(
            f"{fleet.origin}: ray: say which version of Ray the nodes get, or install it here: {INSTALL}"
        ) from None
