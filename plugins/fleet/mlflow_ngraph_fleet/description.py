"""Description of a fleet in YAML: its devices, their addresses, and the engine that takes studies to them."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator, model_validator

from mlflow_ngraph import credentials, documents
from mlflow_ngraph.devices.registry import DEVICES
from mlflow_ngraph.errors import FleetError, UnknownNameError
from mlflow_ngraph.validation import explain

EngineName = Literal["ray", "slurm"]
ALL = "all"
"""Stands for every device of a fleet."""
DEFAULT_FILE = "fleet.yaml"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
_HOST_KEY = re.compile(r"(ssh-|ecdsa-|sk-)[\w@.-]+ [A-Za-z0-9+/=]+( \S+)*")
_ADDRESS = re.compile(r"https?://[^@/?#\s]+")
_SSH = re.compile(r"([\w.-]+@)?[\w.:-]+")

Name = Annotated[str, StringConstraints(pattern=rf"^{_NAME.pattern}$")]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    @field_validator("*")
    @classmethod
    def _without_credentials(cls, value: Any) -> Any:
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else (value,)
        if any(isinstance(part, str) and credentials.is_value(part) for part in parts):
            raise ValueError("expected no user, password or token: these go to the env_file of the device")
        return value


class Node(_Model):
    """A machine that `fleet up` starts the engine on."""

    host: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.:-]*$")
    """Name or address at which the other machines of the fleet reach it."""
    ssh: str = ""
    """Address for OpenSSH, such as ``ngraph@lab-orin``, or a name of ``~/.ssh/config``. Empty: not reachable, and
    `fleet up` says what to type there."""
    host_key: str = ""
    """The public host key, as in ``/etc/ssh/ssh_host_ed25519_key.pub``. Empty: the one in ``known_hosts``."""
    ssh_options: dict[str, str] = Field(default_factory=dict)
    """More options of OpenSSH, such as ``Port`` or ``IdentityFile``."""
    engine_python: str = ""
    """Interpreter of an environment that has the engine. Empty: `fleet up` makes one."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Variables of the engine's processes, such as ``TMPDIR``; nothing secret."""

    @field_validator("ssh")
    @classmethod
    def _destination(cls, value: str) -> str:
        if value and not _SSH.fullmatch(value):
            raise ValueError(f"expected user@host or a name of ~/.ssh/config, found {value!r}")
        return value

    @field_validator("host_key")
    @classmethod
    def _public_key(cls, value: str) -> str:
        if value and not _HOST_KEY.fullmatch(value):
            raise ValueError("expected a public host key such as 'ssh-ed25519 AAAA...'")
        return value

    @field_validator("ssh_options")
    @classmethod
    def _pinned(cls, value: dict[str, str]) -> dict[str, str]:
        kept = {"stricthostkeychecking", "userknownhostsfile", "forwardagent", "batchmode"}
        for name in value:
            if name.lower() in kept:
                raise ValueError(f"{name} is not for anybody to change: host keys are pinned, and keys stay here")
        return value

    @field_validator("environment")
    @classmethod
    def _nothing_secret(cls, value: dict[str, str]) -> dict[str, str]:
        return _open(value)


class Head(Node):
    """The machine that keeps the queue."""

    port: int = Field(6379, ge=1, le=65535)
    """Port that nodes join."""
    dashboard_port: int = Field(8265, ge=1, le=65535)
    """Port of the job API, which listens on the loopback of this machine alone."""
    address: str = ""
    """Address of the job API from here, such as ``https://lab-head``. Empty: through a tunnel of OpenSSH, or on this
    machine where ``ssh`` is empty too."""
    ca_file: str = ""
    """Certificates that vouch for an ``https`` address; the system's own by default."""

    @field_validator("address")
    @classmethod
    def _without_login(cls, value: str) -> str:
        if value and not _ADDRESS.fullmatch(value):
            raise ValueError("expected http://host:port or https://host:port, without user and password")
        return value


class Device(Node):
    """A machine that is measured."""

    profile: str = ""
    """Device profile: ``xeon``, ``gpu``, ``orin`` or ``host``. Empty: the one with the name of the device, else ``host``."""
    python: str = ""
    """Interpreter of an environment with the compilers, such as that of a Jetson that sees its TensorRT. Empty: an
    environment is made once from ``requirements``."""
    requirements: list[str] = Field(default_factory=list)
    """Requirements to install, as for pip; ``mlflow-ngraph[EXTRA]`` stands for this very version. By default the extra of the
    profile."""
    interpreter: str = "python3"
    """Interpreter that makes the environment: a Python from 3.10 on."""
    system_site_packages: bool = False
    """Let the environment see the packages of its interpreter, as on a Jetson, whose TensorRT they are."""
    pip_options: list[str] = Field(default_factory=list)
    """Options of ``pip install`` there, such as ``--extra-index-url`` and its address."""
    labels: dict[Name, str] = Field(default_factory=dict)
    """Other facts, such as the rack."""
    tracking_uri: str = ""
    """The tracking server as the device sees it. Empty: it sees none, and results come by way of the client."""
    home: str = ""
    """Directory for studies and engines on the device; the user's data directory by default."""
    env: dict[str, str] = Field(default_factory=dict)
    """Variables of the benchmark; nothing secret."""
    env_file: str = ""
    """File on the device with more of them, ``NAME=value`` a line, that nobody but its owner can read: logins of the tracking
    server belong there."""

    @field_validator("env")
    @classmethod
    def _not_secret(cls, value: dict[str, str]) -> dict[str, str]:
        return _open(value)

    @field_validator("profile")
    @classmethod
    def _known_profile(cls, value: str) -> str:
        if value and value not in DEVICES.names():
            raise ValueError(str(UnknownNameError("device profile", value, DEVICES.names())))
        return value

    @model_validator(mode="after")
    def _one_environment(self) -> Device:
        if self.python and (self.requirements or self.pip_options):
            raise ValueError("python names an environment that is there, and requirements one to be made: keep one")
        return self


class Fleet(_Model):
    """The devices of a lab."""

    name: Name = "fleet"
    engine: EngineName = "ray"
    """Engine that queues studies and takes them to the devices."""
    ray: str = Field("", pattern=r"^(\d+\.\d+\.\d+)?$")
    """Version of Ray on the nodes; by default the one that this client has."""
    token_file: str = ""
    """File with the clients' token, of mode 0600, relative to this one. By default in the directory of this package."""
    shared: str = ""
    """With Slurm: a directory that this machine and all devices see."""
    partition: str = ""
    """With Slurm: the partition of the devices; by default that of the cluster."""
    head: Head | None = None
    devices: dict[Name, Device] = Field(min_length=1)

    _origin: Path = Path(DEFAULT_FILE)

    @field_validator("devices")
    @classmethod
    def _not_all(cls, value: dict[str, Device]) -> dict[str, Device]:
        if ALL in value:
            raise ValueError(f"{ALL!r} stands for every device: call it something else")
        return value

    @model_validator(mode="after")
    def _complete(self) -> Fleet:
        if self.engine == "ray" and self.head is None:
            raise ValueError("engine ray needs a head: the machine that keeps the queue")
        if self.engine == "slurm" and not self.shared:
            raise ValueError("engine slurm needs shared: a directory that this machine and all devices see")
        return self

    @property
    def origin(self) -> Path:
        return self._origin

    def profile(self, name: str) -> str:
        device = self.devices[name]
        return device.profile or (name if name in DEVICES.names() else "host")

    def chosen(self, names: Sequence[str]) -> list[str]:
        """The devices of these names, in the order of the file; ``all`` is every one.

        Raises
        ------
        UnknownNameError
            One has no such name.
        """
        if list(names) == [ALL]:
            return list(self.devices)
        for name in names:
            if name not in self.devices:
                raise UnknownNameError(f"device of {self._origin}", name, [*self.devices, ALL])
        return [name for name in self.devices if name in names]


def load(path: Path) -> Fleet:
    """Read the description of a fleet.

    Raises
    ------
    FleetError
        The file is missing or invalid; names the key and the allowed values.
    """
    try:
        content = documents.from_yaml(path)
    except FileNotFoundError:
        raise FleetError(f"no file {path}: name the description of the fleet with --fleet FILE") from None
    except (ValueError, OSError) as error:
        raise FleetError(f"{path}: not readable as YAML: {error}") from None
    return parse(content, path)


def parse(content: object, origin: Path) -> Fleet:
    """Validate a description.

    Parameters
    ----------
    origin : Path
        Its file; relative paths in it start there.

    Raises
    ------
    FleetError
        As in `load`.
    """
    if not isinstance(content, Mapping):
        raise FleetError(f"{origin}: expected a mapping of keys, found {type(content).__name__}")
    own = {key: value for key, value in content.items() if not of_mlflow(str(key))}
    try:
        fleet = Fleet.model_validate({"name": _name_of(origin), **own})
    except ValidationError as error:
        raise FleetError(f"{origin}: {explain(error, Fleet)}") from None
    fleet._origin = origin.absolute()  # noqa: SLF001 - its own
    return fleet


def read_secret(path: Path) -> str:
    """The one line of a file that only its owner may read.

    Raises
    ------
    FleetError
        There is none, others can read it, or it is empty.
    """
    try:
        with path.open(encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read().strip()
    except OSError as error:
        raise FleetError(
            f"{path}: the token cannot be read ({error.strerror}); mlflow-ngraph fleet up makes one"
        ) from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise FleetError(f"{path}: others can read the token: chmod 600 {path}")
    if not text:
        raise FleetError(f"{path}: the token is empty: delete the file, and mlflow-ngraph fleet up makes a new one")
    return text


def to_plain(fleet: Fleet) -> dict[str, Any]:
    """A description as JSON."""
    plain: dict[str, Any] = json.loads(fleet.model_dump_json(exclude_defaults=True))
    return plain


def of_mlflow(key: str) -> bool:
    """True for keys that MLflow itself puts into the configuration of a backend."""
    return key.isupper() or key.startswith("_mlflow") or key in {"build_image", "docker_auth"}


def _name_of(origin: Path) -> str:
    return origin.stem if _NAME.fullmatch(origin.stem) else "fleet"


def _open(variables: dict[str, str]) -> dict[str, str]:
    for name in variables:
        if credentials.is_name(name):
            raise ValueError(f"{name} looks like a secret: put it into the env_file of the device")
    return variables
