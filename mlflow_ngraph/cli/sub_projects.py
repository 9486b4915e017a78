"""Run a study in the MLflow sub-project of its device, and end the MLflow run if it fails or is ended.

``mlflow run . -e benchmark -P device=xeon`` starts in whatever environment MLflow made or was told to use. If that
environment has the study's compilers, the study runs right there. If not, it runs through the device's sub-project
(``entrypoints/<device>``), which has an environment of its own, and as the *same* MLflow run: there is one study run,
whichever way it went.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from mlflow_ngraph.compilers.registry import COMPILERS
from mlflow_ngraph.devices.base import DeviceProfile
from mlflow_ngraph.errors import DependencyError, NGraphError, TrackingError, UsageError
from mlflow_ngraph.processes import interruption, parent_death
from mlflow_ngraph.tracking.study_run import HANDED_OVER, is_handed_over

ROOT = Path(__file__).resolve().parents[2]
"""The checkout, when the package runs from one."""
ENV_MANAGER = "NGRAPH_ENV_MANAGER"
"""Environment variable that chooses the environment manager of sub-projects."""
MANAGERS = ("uv", "virtualenv", "conda", "local")


def lacking(compilers: list[str]) -> dict[str, str]:
    """The compilers that cannot run in this environment, with the reason."""
    reasons = {}
    for name in compilers:
        try:
            availability = COMPILERS.get(name).availability()
        except DependencyError as error:
            reasons[name] = str(error)
        else:
            if not availability.available:
                reasons[name] = availability.reason
    return reasons


def dispatch(profile: DeviceProfile, parameters: Mapping[str, str]) -> None:
    """Run the device's sub-project in its own environment, as the MLflow run that this process belongs to.

    Raises `UsageError` if the device has no sub-project here, or nothing can make its environment, and `NGraphError` if
    its environment could not be made, or its study failed; the sub-process has already said why.
    """
    if profile.project is None or not (ROOT / profile.project / "MLproject").is_file():
        raise UsageError(
            f"device {profile.name!r} has no sub-project here to run in; install what is missing into this environment"
        )
    import mlflow
    from mlflow.exceptions import ExecutionException, MlflowException
    from mlflow.utils.process import ShellCommandException

    run_id = os.environ.get("MLFLOW_RUN_ID")
    manager = env_manager(run_id)
    try:
        mlflow.projects.run(
            f"{ROOT}#{profile.project}", parameters=dict(parameters), env_manager=manager, run_id=run_id
        )
    except (ExecutionException, MlflowException, ShellCommandException) as error:
        raise NGraphError(f"sub-project {profile.project} ({manager}): {' '.join(str(error).split())}") from None


def env_manager(run_id: str | None) -> str:
    """The manager for a sub-project's environment.

    That is ``$NGRAPH_ENV_MANAGER``, else the one that made the environment of this very run, else one that is
    installed.

    Raises `UsageError` if the variable names no manager, or none is installed.
    """
    chosen = os.environ.get(ENV_MANAGER, "")
    if chosen:
        if chosen not in MANAGERS:
            raise UsageError(f"{ENV_MANAGER}: unknown environment manager {chosen!r}: allowed: {', '.join(MANAGERS)}")
        return chosen
    manager = _manager_of_run(run_id) or env_manager_on_path()
    if not manager:
        raise UsageError(
            "no environment manager found to make the device's environment: pip install uv, "
            "or install the device's packages here and use --env-manager local"
        )
    return manager


def env_manager_on_path() -> str:
    """The first environment manager that is installed, or empty text."""
    tools = {"uv": "uv", "pyenv": "virtualenv", "conda": "conda"}
    return next((manager for tool, manager in tools.items() if shutil.which(tool)), "")


def die_with_parent() -> None:
    """Have this process told to end when ``mlflow run`` ends, however that happens.

    ``mlflow run`` passes no signal on: killed, it leaves its entry point measuring, and its run RUNNING for ever.
    """
    parent_death.send_to_self(signal.SIGTERM, os.getppid())


def _manager_of_run(run_id: str | None) -> str:
    """Environment manager that MLflow noted on the run; it notes none for ``local``."""
    if run_id is None:
        return ""
    from mlflow import MlflowClient

    tags = MlflowClient().get_run(run_id).data.tags
    noted = tags.get("mlflow.project.env", "")
    return noted if noted in MANAGERS else ""


@contextmanager
def run_ends_with_process() -> Iterator[None]:
    """Within the block SIGTERM raises KeyboardInterrupt, and whatever is raised ends the MLflow run too.

    MLflow and our recorder end it themselves in nearly every case; this is for the others, such as a signal that
    arrives while modules are imported. The study becomes that run.
    """
    run_id = os.environ.get("MLFLOW_RUN_ID")
    if run_id is not None:
        os.environ[HANDED_OVER] = run_id
    with interruption.ending():
        try:
            yield
        except KeyboardInterrupt:
            _end(run_id, "KILLED")
            raise
        except Exception:
            _end(run_id, "FAILED")
            raise
        finally:
            os.environ.pop(HANDED_OVER, None)


def _end(run_id: str | None, status: str) -> None:
    """Give the run its last status.

    Also where it has one: MLflow calls a run FAILED that we asked it to interrupt. But our recorder alone calls one FINISHED
    while we run, and then it has a whole study, whatever came after.
    """
    if run_id is None:
        return
    from mlflow_ngraph.tracking import connection

    uri = connection.resolve_uri(None)
    # What ended this process may have ended the tracking server too; there is nothing left to tell it then, nor to wait for.
    with suppress(TrackingError), connection.talking(uri, "end the run", connection.PREFLIGHT):
        client = connection.connect(uri)
        run = client.get_run(run_id)
        if is_handed_over(run) and run.info.status != "FINISHED":
            client.set_terminated(run_id, status)
