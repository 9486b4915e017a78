"""FleetRun: makes the parent run of a study over several devices, lists its studies, ends it with a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlflow_ngraph import addresses
from mlflow_ngraph.tracking import connection, schema, views
from mlflow_ngraph.tracking.schema import Kind, Tag
from mlflow_ngraph.tracking.study_run import StudyRuns, is_handed_over

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

COMPARISON = "comparison.md"
"""The artifact that compares the devices."""


@dataclass(frozen=True)
class FleetRun:
    """An open run."""

    tracking_uri: str
    experiment: str
    run_id: str
    experiment_id: str

    @classmethod
    def create(
        cls, fleet_id: str, study: str, devices: Sequence[str], tracking_uri: str | None, experiment: str | None
    ) -> FleetRun:
        """Make the run, or take that of ``mlflow run`` of this project.

        Parameters
        ----------
        fleet_id, study : str
            Facts that the studies share: their common id, and their name.
        tracking_uri, experiment : str | None
            As of a study.

        Raises
        ------
        TrackingError
            The server cannot be reached or refuses.
        """
        uri = connection.resolve_uri(tracking_uri)
        client = connection.reach(uri, create=True)
        with connection.talking(uri, "open the run of the fleet", connection.RECORDING):
            from mlflow.tracking.context.registry import resolve_tags

            runs = StudyRuns(client, uri, experiment)
            target = runs.experiment()
            tags = {
                **resolve_tags(),
                Tag.KIND: Kind.FLEET,
                Tag.SCHEMA: schema.SCHEMA_VERSION,
                Tag.STUDY: study,
                # Not that of any device, so that each of these gets a run of its own.
                Tag.STUDY_ID: fleet_id,
                Tag.DEVICES: ",".join(devices),
            }
            surrounding = runs.surrounding()
            if surrounding is not None and is_handed_over(surrounding):
                run_id = surrounding.info.run_id
                for name, value in tags.items():
                    client.set_tag(run_id, name, value)
            else:
                if surrounding is not None:
                    tags[Tag.PARENT] = surrounding.info.run_id
                run_id = client.create_run(target.experiment_id, tags=tags, run_name=fleet_id).info.run_id
                for name, value in (("study", study), ("devices", ",".join(devices))):
                    client.log_param(run_id, name, schema.cut(value, schema.MAX_PARAM))
        return cls(uri, target.name, run_id, target.experiment_id)

    @classmethod
    def known(cls, run_id: str, tracking_uri: str | None) -> FleetRun:
        """The run of an earlier process.

        Raises
        ------
        TrackingError
            The server cannot be reached, or has no such run.
        """
        uri = connection.resolve_uri(tracking_uri)
        client = connection.reach(uri)
        with connection.talking(uri, "read the run of the fleet", connection.RECORDING):
            info = client.get_run(run_id).info
            experiment = client.get_experiment(info.experiment_id).name
        return cls(uri, experiment, run_id, info.experiment_id)

    @property
    def address(self) -> str:
        """Address of the run for people or, for a store without a server, the run and the command that shows it."""
        if not connection.is_server(self.tracking_uri):
            return f"{self.run_id}, shown by {views.command(self.tracking_uri)}"
        return views.run_link(addresses.shown(self.tracking_uri).rstrip("/"), self.experiment_id, self.run_id)

    def close(self, status: str, comparison: str) -> None:
        """End the run, and runs that a lost device has left running.

        Parameters
        ----------
        status : str
            ``FINISHED``, ``FAILED`` or ``KILLED``.
        comparison : str
            Markdown; empty where there is nothing to compare.

        Raises
        ------
        TrackingError
            The server cannot be reached or refuses.
        """
        with connection.talking(self.tracking_uri, "end the run of the fleet", connection.RECORDING):
            client = connection.connect(self.tracking_uri)
            if comparison:
                client.set_tag(self.run_id, Tag.NOTE, schema.cut(comparison, schema.MAX_TAG))
                client.log_text(self.run_id, comparison, COMPARISON)
            client.set_terminated(self.run_id, status)
            for run_id in self._running(client, self.run_id):
                client.set_terminated(run_id, "KILLED")

    def studies(self) -> list[str]:
        """The ids of the studies that were recorded under it."""
        with connection.talking(self.tracking_uri, "read the studies of the fleet", connection.RECORDING):
            query = f"tags.`{Tag.PARENT}` = '{self.run_id}' AND tags.`{Tag.KIND}` = '{Kind.STUDY}'"
            client = connection.connect(self.tracking_uri)
            runs: list[Run] = connection.every(
                lambda token: client.search_runs([self.experiment_id], query, page_token=token)
            )
        return [run.data.tags[Tag.STUDY_ID] for run in runs]

    def _running(self, client: MlflowClient, parent: str) -> list[str]:
        """Runs below one that say RUNNING, of studies and of their lanes."""
        query = f"tags.`{Tag.PARENT}` = '{parent}'"
        runs: list[Run] = connection.every(
            lambda token: client.search_runs([self.experiment_id], query, page_token=token)
        )
        running = [run.info.run_id for run in runs if run.info.status == "RUNNING"]
        return [*running, *(run_id for run in runs for run_id in self._running(client, run.info.run_id))]
