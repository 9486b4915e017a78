"""Does anything that a second user of a server does change what the first one records, or is answered?

``python benchmarks/two_users.py [--acts NAME,...] [--together 1] [--keep DIRECTORY]``

A server with login, on which A and B own experiments and may read the other's. For each act of B, or for several
together, A records a study that B knows of, after the act, and again after it was done once more. In between, A asks
what A asked before there was any act, of an equal study. Exit code 1: A's recording fails, is not where it was, or lacks
something; A is answered otherwise; or anything of A's is in an experiment of B's.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any

import pandas as pd
import requests
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.server.auth.client import AuthServiceClient
from support import records
from support.renamed_study import renamed
from support.server import Server
from two_models import User
from untrue_answers import STUDY, lacking
from werkzeug.security import generate_password_hash

from mlflow_ngraph import runner
from mlflow_ngraph.errors import NGraphError
from mlflow_ngraph.execute import replay
from mlflow_ngraph.execute.record import StudyRecord
from mlflow_ngraph.recording.from_journal import sync_study
from mlflow_ngraph.study_settings import CompilerChoice
from mlflow_ngraph.tracking.schema import Artifact, Kind, Tag

_STUDY = STUDY.model_copy(update={"compilers": [CompilerChoice(name=name) for name in ("identity", "onnxruntime")]})
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
    name: str
    """Of A's experiment."""

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
    with suppress(MlflowException, requests.RequestException):
        act(*arguments)


def _planted_engine(scene: Scene) -> None:
    (engine, *_) = [engine for lane in scene.record.lanes.values() for engine in lane.engines]
    tags = {Tag.KIND: Kind.ENGINE, Tag.STUDY_ID: scene.record.id, Tag.ENGINE_ID: engine.id, Tag.ENGINE_KEY: engine.key}
    model = scene.client.create_logged_model(
        scene.mine, "planted", tags={**tags, Tag.LANE_ID: _lane(scene), Tag.RECORD: scene.key()}
    )
    scene.client.finalize_logged_model(model.model_id, "READY")


def _import(scene: Scene, experiment: str | None = "b") -> Mapping[str, str]:
    return sync_study(scene.directory, tracking_uri=scene.address, experiment=experiment).where


_TABLES = count()


def _table(**columns: Any) -> Callable[[Scene], object]:
    """An import into an experiment of B's whose table has other values; functions are given the scene."""
    experiment = f"b-{next(_TABLES)}"

    def written(scene: Scene) -> None:
        run_id = _import(scene, experiment)["run_id"]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(scene.client.download_artifacts(run_id, Artifact.RESULTS, folder))
            changed: dict[str, Any] = {
                name: value(scene) if callable(value) else value for name, value in columns.items()
            }
            frame = pd.read_parquet(path).assign(**changed)
            frame.to_parquet(path)
            scene.client.log_artifact(run_id, str(path))
            scene.client.set_tag(run_id, Tag.RESULTS_SHA256, hashlib.sha256(path.read_bytes()).hexdigest())

    return written


def _first(scene: Scene, kind: str) -> str:
    return next((run.info.run_id for run in scene.runs() if run.data.tags[Tag.KIND] == kind), "0" * 32)


def _model(scene: Scene) -> str:
    return next((str(model.model_id) for model in scene.models()), "m-" + "0" * 32)


_LATER = {"started_at": lambda scene: time.time() - 1, "finished_at": lambda scene: time.time()}
_FASTER = {"throughput": 1e6, "throughput_ci_low": 9e5, "throughput_ci_high": 1.1e6, "latency_p50_ms": 1e-3}


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
    "an import into B's experiment": _import,
    "an import that names no experiment": lambda scene: _import(scene, None),
    "an import into A's experiment": lambda scene: _import(scene, scene.name),
    "an import into a new experiment": lambda scene: _import(scene, "b-too"),
    "a later table": _table(**_LATER),
    "one of the day after": _table(started_at=lambda scene: time.time() + _DAY_S),
    "a faster one": _table(**_LATER, **_FASTER),
    "one of A's runs": _table(
        **_LATER, **_FASTER, run_id=lambda scene: _first(scene, Kind.STUDY), lane_run_id=lambda scene: _first(scene, Kind.LANE)
    ),
    "one of A's engines": _table(**_LATER, **_FASTER, model_id=_model),
    "one with a command": _table(**_LATER, **_FASTER, model_id="m-1; touch /tmp/b #"),
    "one of A's experiment": _table(**_LATER, experiment=lambda scene: scene.name, experiment_id=lambda scene: scene.theirs),
    "one whose study is called like A's": _table(**_LATER, study=lambda scene: scene.record.id),
    "one without labels": _table(compiler_label=None),
    "one without throughput": _table(throughput=0.0, throughput_ci_low=0.0, throughput_ci_high=0.0),
    "one of infinities": _table(throughput=float("inf"), latency_p50_ms=float("nan")),
    "one of another model": _table(**_LATER, **_FASTER, content="0" * 64),
    "a table that is none": lambda scene: scene.client.log_text(_import(scene)["run_id"], "b", Artifact.RESULTS),
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
    records.add_option(parser)
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
        measured = runner.run_study(_STUDY, home=folder / "home", offline=True).directory
        # The users and their permissions lie in the folder that the server runs in.
        server = Server(folder, "--workers", "1", "--app-name", "ngraph-auth")
        server.start()
        try:
            acts = options.acts.split(",")
            fine = _played(acts, options.together, measured, folder, server.address)
        finally:
            server.end(signal.SIGTERM)
    about = "acts that changed no answer and no record of the first one"
    records.keep(options, "two_users", records.at_least(about, fine, len(acts), f"of {len(acts)}"))
    return int(fine != len(acts))


def _played(acts: list[str], together: int, measured: Path, folder: Path, address: str) -> int:
    """How many acts changed nothing."""
    with _user("admin"):
        for name in ("a", "b"):
            AuthServiceClient(address).create_user(name, _PASSWORD)
    # What a password costs at each request is not the question here.
    with sqlite3.connect(folder / "basic_auth.db") as users:
        users.execute("UPDATE users SET password_hash = ?", (generate_password_hash(_PASSWORD, "pbkdf2:sha256:1"),))
    with _user("b"):
        mine = MlflowClient(address).create_experiment("b")
    alone: dict[str, Any] = {}
    fine = 0
    groups = -(-len(acts) // together)
    # Neighbours are of a kind, and one may undo another: they come into different groups.
    for number, chosen in enumerate([[], *(acts[at::groups] for at in range(groups))]):
        # A begins anew each time: copies of a study have one age, and A's newest one decides where verbs look.
        homes = [folder / f"{who}-{number}" for who in ("a", "b")]
        directories = [renamed(measured, place / "home" / "studies" / f"study-{number}") for place in homes]
        with _user("a"):
            owned = MlflowClient(address).create_experiment(name := f"of-study-{number}")
        record = replay.load(directories[0])
        scene = Scene(MlflowClient(address), address, record, directories[1], mine, owned, name)
        user = User("a", homes[0], address, name)
        problems = list(_course([ACTS[act] for act in chosen], scene, directories[0], user, alone))
        fine += 0 if problems else len(chosen)
        if refused := {verb: answer for verb, answer in alone.items() if answer[0] not in (0, 3, 200)}:
            raise SystemExit(f"A alone is refused: {refused}")
        print(f"{', '.join(chosen) or 'alone'}: {'; '.join(problems) or 'fine'}", flush=True)
    print(f"{fine} of {len(acts)} acts changed nothing")
    return fine


def _course(
    acts: list[Callable[[Scene], object]], scene: Scene, directory: Path, user: User, alone: dict[str, Any]
) -> Iterator[str]:
    """B acts, A records; B acts again, A asks and records once more."""
    runs: set[str] = set()
    for experiment in (scene.name, None):
        for act in acts:
            with _user("b"), suppress(MlflowException, NGraphError, requests.RequestException):
                act(scene)
        with _user("b"):
            before = _everything(scene)
        with _user("a"):
            if runs:
                answers = dict(_answers(scene, user))
                alone.update({} if alone else answers)
                yield from (
                    text for verb in alone for text in islice(_differences(alone[verb], answers[verb], verb), 3)
                )
            try:
                outcome = sync_study(directory, tracking_uri=scene.address, experiment=experiment)
            except NGraphError as error:
                yield f"A cannot record: {error}"
                continue
            runs.add(outcome.where["run_id"])
            yield from lacking(scene.address, scene.record, [scene.theirs])
        with _user("b"):
            if _everything(scene) != before:
                yield "something of A's is in B's experiments"
    if len(runs) != 1:
        yield f"A's study is {len(runs)} runs"


def _answers(scene: Scene, user: User) -> Iterator[tuple[str, object]]:
    """What A is told, with the same word in each study for what is that study's own."""
    own = {run.info.run_id: f"run {run.data.tags.get(Tag.LANE_ID, '')}" for run in scene.runs()}
    own |= {model.model_id: f"engine {model.tags[Tag.ENGINE_ID]}" for model in scene.models()}
    own |= {model.tags[Tag.MANIFEST_SHA256]: f"manifest {model.tags[Tag.ENGINE_ID]}" for model in scene.models()}
    own |= {
        str(user.folder): "the home",
        scene.record.id: "the study",
        f"/{scene.theirs}/": "/the experiment/",
        f'"{scene.theirs}"': '"the experiment"',
    }
    engine = next(model.model_id for model in scene.models() if model.tags[Tag.COMPILER] == "onnxruntime")
    verbs = {
        "compare": "compare",
        "recommend": "recommend",
        "pull": f"engine pull --workloads mha-w16-d1 --accept-undecided --to pulled-{scene.record.id}",
        "promote": f"engine promote {engine} --name {scene.name} --accept-undecided",
        "report": f"results report {scene.record.id} --output report-{scene.record.id}",
    }
    for verb, words in verbs.items():
        code, document, error = user.ask(*words.split())
        yield verb, [code, json.loads(_renamed(json.dumps(document), own)) if document else error]
    page = {"experiment": scene.theirs}
    for question in ("comparison", "findings"):
        answer = requests.get(f"{scene.address}/ngraph/api/{question}", params=page, auth=("a", _PASSWORD), timeout=60)
        yield question, [answer.status_code, json.loads(_renamed(answer.text, own))]


def _renamed(text: str, own: dict[str, str]) -> str:
    for identity, name in own.items():
        text = text.replace(identity, name)
    return text


def _differences(before: object, after: object, place: str) -> Iterator[str]:
    """What of an answer is another."""
    if isinstance(before, dict) and isinstance(after, dict) and before.keys() == after.keys():
        for name in before:
            yield from _differences(before[name], after[name], f"{place}.{name}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, values in enumerate(zip(before, after, strict=True)):
            yield from _differences(*values, f"{place}[{number}]")
    elif before != after:
        yield f"{place}: {after!r:.300}, not {before!r:.300}"


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
