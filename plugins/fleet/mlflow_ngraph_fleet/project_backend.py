"""``mlflow run . -e benchmark -P device=orin --backend ngraph``: an MLflow project's study on devices of a fleet.

MLflow returns from a backend of a plug-in as soon as that does, with exit code 0; so this one follows the study to its end. The
run that MLflow makes holds the runs of the devices.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.exceptions import ExecutionException, MlflowException
from mlflow.projects.backend.abstract_backend import AbstractBackend
from mlflow.projects.submitted_run import SubmittedRun
from mlflow.projects.utils import fetch_and_validate_project, get_or_create_run

from mlflow_ngraph.cli.lists import items
from mlflow_ngraph.cli.request import overrides, requested
from mlflow_ngraph.errors import NO_GOOD_ANSWER, FleetError, NGraphError, require_known
from mlflow_ngraph.tracking.study_run import HANDED_OVER
from mlflow_ngraph_fleet import description
from mlflow_ngraph_fleet.cli.benchmark import measure

NAME = "ngraph"
_ENTRY_POINT = "benchmark"
_BACKEND_TAG = "mlflow.project.backend"


class NGraphBackend(AbstractBackend):  # type: ignore[misc]  # MLflow gives the base no types
    """Runs the project's study on a fleet (entry-point group ``mlflow.project_backend``)."""

    def run(
        self,
        project_uri: str,
        entry_point: str,
        params: Mapping[str, str] | None,
        version: str | None,
        backend_config: Mapping[str, Any],
        tracking_uri: str,
        experiment_id: str,
    ) -> SubmittedRun:
        """Run a study on devices, until it has ended on all of them.

        Parameters
        ----------
        project_uri, entry_point : str
            The project, and ``benchmark`` or the name of a device.
        backend_config : Mapping[str, Any]
            A description of a fleet, or ``{"fleet": FILE}``; without either ``fleet.yaml``.

        Raises
        ------
        ExecutionException
            The study failed on a device, or could not begin; in one line.
        """
        given = dict(params or {})
        try:
            folder = fetch_and_validate_project(project_uri, version, entry_point, given)
            # Before there is a run, so that a request that is wrong leaves none behind.
            fleet, names, study, resume = _asked(entry_point, given, backend_config, Path(folder))
        except NGraphError as error:
            raise ExecutionException(str(error)) from None
        run_id = get_or_create_run(None, project_uri, experiment_id, folder, version, entry_point, given).info.run_id
        client = MlflowClient(tracking_uri)
        client.set_tag(run_id, _BACKEND_TAG, NAME)
        insecure = bool(backend_config.get("insecure"))
        try:
            with _within(Path(folder), run_id):
                code = measure(fleet, study, names, resume=resume, tracking_uri=tracking_uri, insecure=insecure)
        except NGraphError as error:
            _fail(client, run_id)
            raise ExecutionException(str(error)) from None
        except BaseException as error:
            _fail(client, run_id, "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED")
            raise
        if code not in (0, NO_GOOD_ANSWER):
            raise ExecutionException(f"run {run_id} failed on a device of the fleet; its last lines are above")
        return _EndedRun(run_id)


class _EndedRun(SubmittedRun):  # type: ignore[misc]  # as above
    """A run that is over when MLflow gets it."""

    def __init__(self, run_id: str) -> None:
        super().__init__()
        self._run_id = run_id

    @property
    def run_id(self) -> str:
        return self._run_id

    def wait(self) -> bool:
        return True

    def get_status(self) -> str:
        return "FINISHED"

    def cancel(self) -> None:
        return


def _asked(entry_point: str, given: dict[str, str], config: Mapping[str, Any], folder: Path) -> Any:
    """The fleet, the devices, the study, and whether to go on with an earlier one."""
    own = {key: value for key, value in config.items() if key != "insecure" and not description.of_mlflow(key)}
    if "devices" in own:
        fleet = description.parse(own, Path(description.DEFAULT_FILE))
    elif set(own) <= {"fleet"}:
        named = Path(str(own.get("fleet") or description.DEFAULT_FILE))
        beside = folder / named
        fleet = description.load(beside if not named.is_file() and beside.is_file() else named)
    else:
        raise FleetError(
            f'backend-config: expected a description of a fleet, or {{"fleet": FILE}}; found {", ".join(own)}'
        )
    device = given.pop("device", "") or (entry_point if entry_point != _ENTRY_POINT else description.ALL)
    study, resume = given.pop("study", ""), given.pop("resume", "") or "auto"
    given.pop("when_busy", "")  # a fleet waits
    known = set(inspect.signature(overrides).parameters) - {"bounds", "device", "build_for"}
    require_known("parameter of a study on a fleet", given, known)
    with _within(folder, None):
        return fleet, fleet.chosen(items(device)), requested(study or None, overrides(**given)), resume


@contextmanager
def _within(folder: Path, run_id: str | None) -> Iterator[None]:
    """Work as MLflow starts a project: in its folder, and as a run."""
    before, names = Path.cwd(), ("MLFLOW_RUN_ID", HANDED_OVER)
    known = {name: os.environ[name] for name in names if name in os.environ}
    os.chdir(folder)
    if run_id is not None:
        os.environ.update(dict.fromkeys(names, run_id))
    try:
        yield
    finally:
        os.chdir(before)
        for name in names:
            os.environ.pop(name, None)
        os.environ.update(known)


def _fail(client: MlflowClient, run_id: str, status: str = "FAILED") -> None:
    # What ended this may have ended the tracking server too.
    with suppress(MlflowException):
        client.set_terminated(run_id, status)
