"""Does anything that a second user of a server does change where, or what, the first one records?

``python benchmarks/two_users.py [--acts NAME,...] [--together 1] [--keep DIRECTORY]``

A server with login, on which A and B own an experiment each and may read the other's. For each act of B, or for several
together, A records a study that B knows of, after the act, and again after it was done once more. Exit code 1: A's recording fails, is not where it was, lacks something, or
anything of A's is in an experiment of B's.
"""

from __future__ import annotations

import argparse
import os
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.server.auth.client import AuthServiceClient
from requests import RequestException
from support.renamed_study import renamed
from support.server import Server
from untrue_answers import STUDY, lacking
from werkzeug.security import generate_password_hash

from mlflow_ngraph import runner
from mlflow_ngraph.errors import NGraphError
from mlflow_ngraph.execute import replay
from mlflow_ngraph.execute.record import StudyRecord
from mlflow_ngraph.recording.from_journal import sync_study
from mlflow_ngraph.tracking.schema import Kind, Tag

_PASSWORD = "a-long-password"  # noqa: S105 - of a server that lives as long as this script


@dataclass(frozen=True)
class Scene:
    """What B knows and has."""

    client: MlflowClient
    address: str
    record: StudyRecord
    directory: Path
    """A copy of A's study, as from an archive."""
    mine: str
    """B's experiment."""
    theirs: str
    """A's experiment."""

    def plant(self, experiment: str = "", start: float | None = None, **tags: str) -> str:
        """Make a run with tags of A's study."""
        given = {Tag.KIND: Kind.STUDY, Tag.STUDY_ID: self.record.id, **{_TAGS[name]: tags[name] for name in tags}}
        at = int(1000 * (time.time() if start is None else start))
        return str(self.client.create_run(experiment or self.mine, at, given).info.run_id)

    def runs(self) -> list[Any]:
        """A's runs of the study."""
        return list(self.client.search_runs([self.theirs], f"tags.`{Tag.STUDY_ID}` = '{self.record.id}'"))

    def models(self) -> list[Any]:
        """A's engines of the study."""
        return list(self.client.search_logged_models([self.theirs], f"tags.`{Tag.STUDY_ID}` = '{self.record.id}'"))

    def key(self) -> str:
        """The key of A's record, once there is one."""
        return next((str(run.data.tags[Tag.RECORD]) for run in self.runs()), "0" * 16)

    def permit(self, permission: str) -> Scene:
        """Let A into B's experiment."""
        with suppress(MlflowException):  # it was given before
            AuthServiceClient(self.address).grant_user_permission("a", "experiment", self.mine, permission)
        return self


_TAGS = {
    "kind": Tag.KIND,
    "lane": Tag.LANE_ID,
    "key": Tag.RECORD,
    "recorder": Tag.RECORDER,
    "alive": Tag.ALIVE_AT,
    "resumed": Tag.RESUMED_BY,
    "parent": Tag.PARENT,
    "content": Tag.CONTENT,
}
_DAY_S = 86400.0


def _lane(scene: Scene) -> str:
    return next(iter(scene.record.lanes))


def _on_runs(act: Callable[[MlflowClient, str], object]) -> Callable[[Scene], object]:
    def on_runs(scene: Scene) -> None:
        for run in scene.runs():
            _try(act, scene.client, run.info.run_id)

    return on_runs


def _on_models(act: Callable[[MlflowClient, str], object]) -> Callable[[Scene], object]:
    def on_models(scene: Scene) -> None:
        for model in scene.models():
            _try(act, scene.client, model.model_id)

    return on_models


def _try(act: Callable[..., object], *arguments: object) -> None:
    with suppress(MlflowException, RequestException):
        act(*arguments)


def _planted_engine(scene: Scene) -> None:
    (engine, *_) = [engine for lane in scene.record.lanes.values() for engine in lane.engines]
    tags = {Tag.KIND: Kind.ENGINE, Tag.STUDY_ID: scene.record.id, Tag.ENGINE_ID: engine.id, Tag.ENGINE_KEY: engine.key}
    model = scene.client.create_logged_model(
        scene.mine, "planted", tags={**tags, Tag.LANE_ID: _lane(scene), Tag.RECORD: scene.key()}
    )
    scene.client.finalize_logged_model(model.model_id, "READY")


def _imported(experiment: str | None) -> Callable[[Scene], object]:
    return lambda scene: sync_study(scene.directory, tracking_uri=scene.address, experiment=experiment)


def _alive(scene: Scene) -> dict[str, Any]:
    return {"recorder": "0123456789ab/1/1", "alive": f"{time.time():.0f}", "key": scene.key()}


ACTS: dict[str, Callable[[Scene], object]] = {
    "a run with the id of the study": lambda scene: scene.plant(),
    "one of tomorrow": lambda scene: scene.plant(start=time.time() + _DAY_S),
    "one of tomorrow where A may write": lambda scene: scene.permit("EDIT").plant(start=time.time() + _DAY_S),
    "one where A may manage": lambda scene: scene.permit("MANAGE").plant(),
    "a lane": lambda scene: scene.plant(kind=Kind.LANE, lane=_lane(scene)),
    "a lane of tomorrow": lambda scene: scene.plant(start=time.time() + _DAY_S, kind=Kind.LANE, lane=_lane(scene)),
    "a lane with the content of A's": lambda scene: scene.plant(
        kind=Kind.LANE, lane=_lane(scene), content="0" * 16, key=scene.key()
    ),
    "a run with the key of A's record": lambda scene: scene.plant(key=scene.key()),
    "a run that says it is being recorded": lambda scene: scene.plant(**_alive(scene)),
    "one that says so for ever": lambda scene: scene.plant(**{**_alive(scene), "alive": "4000000000"}),
    "a run that A's took over": lambda scene: scene.plant(resumed="0" * 32),
    "a run below A's": lambda scene: [scene.plant(parent=run.info.run_id) for run in scene.runs()],
    "a run without a kind": lambda scene: scene.plant(kind=""),
    "a fleet": lambda scene: scene.plant(kind=Kind.FLEET),
    "ten runs": lambda scene: [scene.plant() for _ in range(10)],
    "an engine": _planted_engine,
    "an import into B's experiment": _imported("b"),
    "an import that names no experiment": _imported(None),
    "an import into A's experiment": _imported("a"),
    "an import into a new experiment": _imported("b-too"),
    "a run in A's experiment": lambda scene: scene.plant(scene.theirs),
    "the default experiment": lambda scene: scene.client.create_experiment("ngraph"),
    "A's experiment deleted": lambda scene: scene.client.delete_experiment(scene.theirs),
    "A's experiment renamed": lambda scene: scene.client.rename_experiment(scene.theirs, "b-now"),
    "a tag of A's experiment": lambda scene: scene.client.set_experiment_tag(scene.theirs, Tag.SCHEMA, "99"),
    "A's runs deleted": _on_runs(lambda client, run: client.delete_run(run)),
    "A's runs ended": _on_runs(lambda client, run: client.set_terminated(run, "FAILED")),
    "A's runs open again": _on_runs(lambda client, run: client.update_run(run, "RUNNING")),
    "A's runs renamed": _on_runs(lambda client, run: client.update_run(run, name="b")),
    "the recorder of A's runs": _on_runs(lambda client, run: client.set_tag(run, Tag.RECORDER, "0123456789ab/1/1")),
    "the key of A's runs": _on_runs(lambda client, run: client.set_tag(run, Tag.RECORD, "b")),
    "the key of A's runs removed": _on_runs(lambda client, run: client.delete_tag(run, Tag.RECORD)),
    "A's runs taken over": _on_runs(lambda client, run: client.set_tag(run, Tag.RESUMED_BY, "b")),
    "numbers of A's runs": _on_runs(lambda client, run: client.log_metric(run, "throughput", 1e9)),
    "params of A's runs": _on_runs(lambda client, run: client.log_param(run, "b", "b")),
    "files of A's runs": _on_runs(lambda client, run: client.log_text(run, "b", "results.parquet")),
    "A's engines deleted": _on_models(lambda client, model: client.delete_logged_model(model)),
    "A's engines ended": _on_models(lambda client, model: client.finalize_logged_model(model, "FAILED")),
    "tags of A's engines": _on_models(lambda client, model: client.set_logged_model_tags(model, {Tag.PRUNED: "1"})),
    "files of A's engines": _on_models(lambda client, model: client.log_model_artifacts(model, str(Path(__file__).parent / "support"))),
}  # fmt: skip


def main() -> int:
    """Do each act."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--acts", default=",".join(ACTS))
    parser.add_argument("--together", type=int, default=1, help="acts against each study")
    parser.add_argument("--keep", type=Path, help="a directory in which everything stays")
    options = parser.parse_args()
    os.environ.update(
        MLFLOW_FLASK_SERVER_SECRET_KEY="of-this-script",  # noqa: S106 - as above
        MLFLOW_AUTH_ADMIN_PASSWORD=_PASSWORD,
        MLFLOW_HTTP_REQUEST_MAX_RETRIES="1",
        MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR="false",
    )
    place = nullcontext(str(options.keep)) if options.keep else tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    with place as kept:
        folder = Path(kept).resolve()
        measured = runner.run_study(STUDY, home=folder / "home", offline=True).directory
        # The users and their permissions lie in the folder that the server runs in.
        server = Server(folder, "--workers", "1", "--app-name", "basic-auth")
        server.start()
        try:
            return _played(options.acts.split(","), options.together, measured, folder, server.address)
        finally:
            server.end(signal.SIGTERM)


def _played(acts: list[str], together: int, measured: Path, folder: Path, address: str) -> int:
    with _user("admin"):
        for name in ("a", "b"):
            AuthServiceClient(address).create_user(name, _PASSWORD)
    # What a password costs at each request is not the question here.
    with sqlite3.connect(folder / "basic_auth.db") as users:
        users.execute("UPDATE users SET password_hash = ?", (generate_password_hash(_PASSWORD, "pbkdf2:sha256:1"),))
    owned = {}
    for name in ("a", "b"):
        with _user(name):
            owned[name] = MlflowClient(address).create_experiment(name)
    fine = 0
    for number in range(0, len(acts), together):
        chosen = acts[number : number + together]
        directories = [renamed(measured, folder / who / f"study-{number}") for who in ("a", "b")]
        record = replay.load(directories[0])
        scene = Scene(MlflowClient(address), address, record, directories[1], owned["b"], owned["a"])
        problems = list(_course([ACTS[act] for act in chosen], scene, directories[0], owned["a"]))
        fine += 0 if problems else len(chosen)
        print(f"{', '.join(chosen)}: {'; '.join(problems) or 'fine'}", flush=True)
    print(f"{fine} of {len(acts)} acts changed nothing")
    return int(fine != len(acts))


def _course(acts: list[Callable[[Scene], object]], scene: Scene, directory: Path, owned: str) -> Iterator[str]:
    """B acts, A records; and once more."""
    runs = set()
    for experiment in ("a", None):
        for act in acts:
            with _user("b"), suppress(MlflowException, NGraphError, RequestException):
                act(scene)
        with _user("b"):
            before = _everything(scene)
        with _user("a"):
            try:
                outcome = sync_study(directory, tracking_uri=scene.address, experiment=experiment)
            except NGraphError as error:
                yield f"A cannot record: {error}"
                continue
            runs.add(outcome.where["run_id"])
            yield from lacking(scene.address, scene.record, [owned])
        with _user("b"):
            if _everything(scene) != before:
                yield "something of A's is in B's experiments"
    if len(runs) != 1:
        yield f"A's study is {len(runs)} runs"


def _everything(scene: Scene) -> dict[str, object]:
    """All runs and engines outside A's experiment."""
    client, theirs = scene.client, scene.theirs
    ids = [one.experiment_id for one in client.search_experiments() if one.experiment_id != theirs]
    found = {run.info.run_id: run.to_dictionary() for run in client.search_runs(ids, max_results=5000)}
    return {**found, **{model.model_id: model.to_dictionary() for model in client.search_logged_models(ids)}}


@contextmanager
def _user(name: str) -> Iterator[None]:
    os.environ.update(MLFLOW_TRACKING_USERNAME=name, MLFLOW_TRACKING_PASSWORD=_PASSWORD)
    try:
        yield
    finally:
        del os.environ["MLFLOW_TRACKING_USERNAME"], os.environ["MLFLOW_TRACKING_PASSWORD"]


if __name__ == "__main__":
    sys.exit(main())
