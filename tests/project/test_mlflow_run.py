"""``mlflow run`` as a user types it, against real stores, and what it leaves behind when it is interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from mlflow_ngraph.tracking.recorder import Recorder
from tests.support.records import study_record

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("compilers")]

ROOT = Path(__file__).parents[2]
TINY = "block:mha?width=128"
EXPERIMENT = "projects"


def start(uri: str, home: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start 'mlflow run' in a process group of its own, as a terminal does."""
    client = MlflowClient(uri)
    if client.get_experiment_by_name(EXPERIMENT) is None:
        # Without a place of its own an experiment of a SQLite store keeps its files where 'mlflow run' was called.
        place = None if uri.startswith("http") else (home / "artifacts").as_uri()
        client.create_experiment(EXPERIMENT, artifact_location=place)
    environment = {
        **os.environ,
        "MLFLOW_TRACKING_URI": uri,
        "MLFLOW_ENV_ROOT": str(home / "envs"),
        "NGRAPH_HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    return subprocess.Popen(
        [sys.executable, "-m", "mlflow", "run", ".", "--experiment-name", EXPERIMENT, *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    output, _ = process.communicate(timeout=300)
    return process.returncode, output


def runs(uri: str, kind: str) -> list[Run]:
    client = MlflowClient(uri)
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    return list(client.search_runs(experiments, f"tags.`ngraph.kind` = '{kind}'"))


def parameters(*pairs: str) -> list[str]:
    return [text for pair in pairs for text in ("-P", pair)]


STUDY = parameters("study=smoke", f"workloads={TINY}", "compilers=onnxruntime", "batch_sizes=1,2", "repetitions=3")


@pytest.mark.parametrize("store", ["sqlite_uri", "server_uri"])
def test_the_run_of_mlflow_becomes_the_study_run(store: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    uri: str = request.getfixturevalue(store)
    already = {run.info.run_id for kind in ("study", "lane") for run in runs(uri, kind)}
    code, output = finish(
        start(uri, tmp_path, "-e", "benchmark", *STUDY, *parameters("device=xeon"), "--env-manager", "local")
    )
    assert code == 0, output
    (study,) = [run for run in runs(uri, "study") if run.info.run_id not in already]
    assert study.info.status == "FINISHED"
    assert study.data.tags["mlflow.project.entryPoint"] == "benchmark"
    assert study.info.run_id in output
    lanes = [run for run in runs(uri, "lane") if run.info.run_id not in already]
    assert {run.data.params["compiler"] for run in lanes} == {"identity", "onnxruntime"}
    assert {run.data.tags["mlflow.parentRunId"] for run in lanes} == {study.info.run_id}
    assert {run.data.params["device"] for run in lanes} == {"xeon"}


def test_a_wrong_parameter_fails_the_run_in_one_line(sqlite_uri: str, tmp_path: Path) -> None:
    code, output = finish(start(sqlite_uri, tmp_path, "-e", "xeon", "-P", "study=quik", "--env-manager", "local"))
    assert code == 1
    assert "error: no study 'quik': did you mean 'quick'?" in output
    assert "Traceback" not in output
    client = MlflowClient(sqlite_uri)
    (run,) = client.search_runs([client.get_experiment_by_name(EXPERIMENT).experiment_id])
    assert run.info.status == "FAILED"


@pytest.mark.parametrize(
    ("signum", "status"),
    # After Ctrl-C it is MLflow that has the last word, and it has one word only for what did not succeed.
    [(signal.SIGINT, "FAILED"), (signal.SIGTERM, "KILLED"), (signal.SIGKILL, "KILLED")],
)
def test_an_interrupted_run_is_not_left_running(signum: int, status: str, sqlite_uri: str, tmp_path: Path) -> None:
    few = parameters("study=smoke", f"workloads={TINY}", "compilers=identity", "batch_sizes=1")
    many = [*few, *parameters("repetitions=100000", "resume=never")]
    process = start(sqlite_uri, tmp_path, "-e", "xeon", *many, "--env-manager", "local")
    assert process.stdout is not None
    for line in process.stdout:
        if "measuring" in line:
            break
    family = psutil.Process(process.pid).children(recursive=True)
    assert family
    if signum == signal.SIGINT:
        os.killpg(process.pid, signum)  # as a terminal does; MLflow adds a SIGTERM
    else:
        process.send_signal(signum)
    said = process.stdout.read() if signum == signal.SIGINT else ""
    process.wait(60)
    _, alive = psutil.wait_procs(family, timeout=30)
    assert not alive
    deadline = time.monotonic() + 60
    while (found := runs(sqlite_uri, "study")[0].info.status) == "RUNNING" and time.monotonic() < deadline:
        time.sleep(0.2)
    assert found == status
    assert "Traceback" not in said.partition("error: interrupted")[0]
    assert signum != signal.SIGINT or "Ctrl-C again ends at once" in " ".join(said.split())


def test_the_light_environment_is_enough_to_compare(sqlite_uri: str, tmp_path: Path) -> None:
    record = study_record(tmp_path / "study")
    recorder = Recorder(sqlite_uri, "mine")
    recorder.open(record, tmp_path / "study")
    for lane in record.lanes:
        recorder.record_lane(record, lane)
    recorder.close(record, "FINISHED")
    code, output = finish(start(sqlite_uri, tmp_path, "-e", "compare", "-P", "metric=speedup", "--env-manager", "uv"))
    assert code == 0, output
    assert "resnet18" in output
