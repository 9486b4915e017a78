"""RayEngine: submits, follows and cancels a fleet's jobs over Ray's Job Submission API. Starts no cluster.

Of Ray the client has this service alone; its version and its Python need not be those of the nodes. A device is a resource of
Ray of which there is one, so that jobs for it queue.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from mlflow_ngraph import home
from mlflow_ngraph.errors import DependencyError, FleetAwayError, FleetError
from mlflow_ngraph_fleet import ssh
from mlflow_ngraph_fleet.description import Fleet, read_secret
from mlflow_ngraph_fleet.engine import Engine, Job, KnownJob, State, Status

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

T = TypeVar("T")

INSTALL = "pip install 'mlflow-ngraph-fleet[ray]'"
STOP_SECONDS = 60
"""Time for a study to end its run after SIGTERM."""
_TIMEOUT = (5, 60)
"""Seconds to connect, and between two bytes of an answer."""
_LARGEST = 500_000_000
"""Bytes of a directory that Ray's store takes."""
_STATES = {
    "PENDING": State.QUEUED,
    "RUNNING": State.RUNNING,
    "SUCCEEDED": State.SUCCEEDED,
    "FAILED": State.FAILED,
    "STOPPED": State.CANCELLED,
}
_ELSEWHERE = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS")
"""Variables that would lead Ray's client to another cluster than the one of the fleet."""
_OF_JOBS = {
    # Ray hides GPUs from jobs that did not ask it for one, and starts jobs with niceness 15.
    "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1",
    "RAY_worker_niceness": "0",
    "RAY_JOB_STOP_WAIT_TIME_S": str(STOP_SECONDS),
}
_log = logging.getLogger(__name__)


def token_path(fleet: Fleet) -> Path:
    """Path of a fleet's token on this machine."""
    if fleet.token_file:
        return fleet.origin.parent / Path(fleet.token_file).expanduser()
    return home.location() / "fleet" / f"{fleet.name}.token"


class RayEngine(Engine):
    """Jobs of a Ray cluster."""

    name = "ray"

    def __init__(self, client: JobSubmissionClient, tunnel: ssh.Tunnel | None) -> None:
        self._client = client
        self._tunnel = tunnel

    @classmethod
    def connect(cls, fleet: Fleet, *, insecure: bool = False) -> RayEngine:
        """Reach the job API of a fleet.

        Parameters
        ----------
        insecure : bool
            True if a cluster may be used that asks for no token, and so runs any job from anybody.

        Raises
        ------
        FleetError
            It is open to everybody, or does not take the token.
        FleetAwayError
            It does not answer.
        DependencyError
            Ray is not installed.
        """
        assert fleet.head is not None
        client_of = client_class()
        tunnel = None
        if fleet.head.ssh and not fleet.head.address:
            tunnel = ssh.Tunnel(fleet.head, fleet.head.dashboard_port)
        with ExitStack() as stack:
            if tunnel is not None:
                stack.callback(tunnel.close)
                tunnel.open()
            port = fleet.head.dashboard_port if tunnel is None else tunnel.port
            address = fleet.head.address or f"http://127.0.0.1:{port}"
            verify = _authorities(fleet)
            open_to_all = _is_open(address, verify)
            if open_to_all and not insecure:
                raise FleetError(
                    f"the job API at {address} asks for no token: whoever reaches it runs what they like on every device; start "
                    "it with mlflow-ngraph fleet up, or say --insecure"
                )
            headers = {} if open_to_all else {"Authorization": f"Bearer {read_secret(token_path(fleet))}"}
            with _here_only():
                client = _asked(address, lambda: client_of(address, headers=headers, verify=verify))
            stack.pop_all()
            return cls(client, tunnel)

    def close(self) -> None:
        if self._tunnel is not None:
            self._tunnel.close()

    def submit(self, job: Job) -> None:
        for part in job.parts.values():
            size = sum(file.stat().st_size for file in part.rglob("*") if file.is_file())
            if size > _LARGEST:
                raise FleetError(
                    f"{', '.join(path.name for path in part.rglob('*') if path.is_file())}: {size / 1e6:.0f} MB, and Ray takes no "
                    f"more than {_LARGEST / 1e6:.0f} MB: copy it to the device, and name it by its full path there"
                )
        if self.status(job.id).state is not State.LOST:
            return
        self._ask(
            lambda: self._client.submit_job(
                entrypoint=f"exec {job.command}",
                submission_id=job.id,
                entrypoint_resources={job.device: 1},
                runtime_env={
                    "working_dir": str(job.files),
                    "py_modules": [str(path) for path in job.parts.values()],
                    "env_vars": _OF_JOBS,
                },
                metadata={"device": job.device},
            )
        )

    def status(self, job_id: str) -> Status:
        try:
            details = self._ask(lambda: self._client.get_job_info(job_id))
        except _UnknownJobError:
            return Status(State.LOST, "the cluster knows nothing of it: its head was started anew")
        message = " ".join(str(details.message or "").split())
        return Status(_STATES[str(details.status.value)], message, details.driver_exit_code)

    def logs(self, job_id: str) -> str:
        try:
            return str(self._ask(lambda: self._client.get_job_logs(job_id)))
        except FleetAwayError:
            self._ask(self._client.get_version)  # says so where it is the head that is away
            return ""
        except _UnknownJobError:
            return ""

    def cancel(self, job_id: str) -> None:
        try:
            self._ask(lambda: self._client.stop_job(job_id))
        except _UnknownJobError:
            return

    def recover(self) -> list[KnownJob]:
        jobs = self._ask(self._client.list_jobs)
        return [
            KnownJob(
                str(job.submission_id), str((job.metadata or {}).get("device", "")), _STATES[str(job.status.value)]
            )
            for job in jobs
        ]

    def nodes(self) -> Mapping[str, str]:
        answer = self._ask(lambda: self._client._do_request("GET", "/nodes?view=summary"))  # noqa: SLF001
        nodes = answer.json()["data"]["summary"] if answer.ok else []
        states = {}
        for node in nodes:
            raylet = node.get("raylet", {})
            for resource in raylet.get("resourcesTotal", {}):
                states[resource] = str(raylet.get("state", "")).lower()
        return states

    def _ask(self, question: Callable[[], T]) -> T:
        if self._tunnel is not None:
            self._tunnel.open()  # again, where the connection was lost
        return _asked(self._client.get_address(), question)


class _UnknownJobError(FleetError):
    """The cluster has no such job."""


def _asked(address: str, question: Callable[[], T]) -> T:
    """An answer of Ray's client, whose errors are texts.

    Raises
    ------
    FleetAwayError
        The cluster does not answer.
    FleetError
        The cluster refuses.
    """
    import requests
    from ray.exceptions import RayError

    try:
        return question()
    except requests.exceptions.SSLError as error:
        raise FleetError(
            f"the job API at {address} has a certificate that nobody here vouches for: name ca_file"
        ) from error
    except (ConnectionError, requests.ConnectionError, requests.Timeout) as error:
        _log.debug("the engine is away", exc_info=True)
        raise FleetAwayError(f"the job API at {address} does not answer: see mlflow-ngraph fleet doctor") from error
    except (RuntimeError, ValueError, requests.RequestException, RayError) as error:
        text = " ".join(str(error).split())
        if "status code 404" in text or "does not exist" in text:
            raise _UnknownJobError(text) from error
        if "status code 5" in text:
            raise FleetAwayError(f"the job API at {address} is not well: {text[:300]}") from error
        if "oken" in text:
            raise FleetError(
                f"the job API at {address} does not take the token of this client: {text[:200]}"
            ) from error
        raise FleetError(f"the job API at {address} refuses: {text[:300]}") from error


@cache
def client_class() -> type[JobSubmissionClient]:
    """Ray's client.

    Raises
    ------
    DependencyError
        It is not installed.
    """
    # Before Ray is imported, which is when it looks at them.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        from ray.job_submission import JobSubmissionClient

        logging.getLogger("ray").setLevel(logging.WARNING)
        for name in ("ray.dashboard.modules.dashboard_sdk", "ray._private.runtime_env.packaging"):
            logging.getLogger(name).setLevel(logging.WARNING)
    except ImportError as error:
        raise DependencyError(f"a fleet with engine ray needs {error.name}; install it with: {INSTALL}") from error

    class InTime(JobSubmissionClient):  # type: ignore[misc]  # the base has no types here
        """Gives up on a head that does not answer, which the base waits for without end."""

        def _do_request(self, method: str, endpoint: str, **options: Any) -> Any:
            return super()._do_request(method, endpoint, **{"timeout": _TIMEOUT, **options})

    return cast("type[JobSubmissionClient]", InTime)


@contextmanager
def _here_only() -> Iterator[None]:
    """Hide variables that would lead Ray elsewhere."""
    hidden = {name: os.environ.pop(name) for name in _ELSEWHERE if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)


def _authorities(fleet: Fleet) -> str | bool:
    if fleet.head is None or not fleet.head.ca_file:
        return True
    path = fleet.origin.parent / Path(fleet.head.ca_file).expanduser()
    if not path.is_file():
        raise FleetError(f"{fleet.origin}: head.ca_file: no file {path}")
    return str(path)


def _is_open(address: str, verify: str | bool) -> bool:
    """Test if the job API answers without a token."""
    import requests

    def ask() -> Any:
        return requests.get(f"{address}/api/jobs/", timeout=_TIMEOUT, verify=verify, headers={"Authorization": ""})

    return bool(_asked(address, ask).ok)
