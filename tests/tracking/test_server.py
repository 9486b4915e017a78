"""Against a real tracking server on PostgreSQL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from mlflow import MlflowClient

from mlflow_ngraph.analysis import results
from mlflow_ngraph.tracking.recorder import Recorder
from mlflow_ngraph.tracking.schema import Tag
from tests.support.records import lane_id, study_record

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("compilers")]

ROOT = Path(__file__).parents[2]
READER = """
import hashlib, json, sys
sys.modules["mlflow_ngraph"] = None  # any import of the package fails
import mlflow
from mlflow import MlflowClient

uri, experiment, lane = sys.argv[1:]
mlflow.set_tracking_uri(uri)
client = MlflowClient()
ids = [client.get_experiment_by_name(experiment).experiment_id]
(run,) = client.search_runs(ids, f"tags.`ngraph.kind` = 'lane' AND tags.`ngraph.lane_id` = '{lane}'")
curve = client.get_metric_history(run.info.run_id, "batch/throughput")
fast = mlflow.search_logged_models(
    ids, filter_string="params.compiler = 'openvino' AND metrics.`batch/throughput` > 300", output_format="list"
)
model = client.get_logged_model(run.outputs.model_outputs[0].model_id)
home = mlflow.artifacts.download_artifacts(f"models:/{model.model_id}")
manifest = json.load(open(f"{home}/manifest.json"))
found = {name: hashlib.sha256(open(f"{home}/{name}", "rb").read()).hexdigest() for name in manifest["files"]}
registered = mlflow.register_model(f"models:/{model.model_id}", "resnet18-xeon")
top = client.search_runs(ids, "params.device = 'xeon'", order_by=["metrics.throughput DESC"], max_results=1)[0]
print(json.dumps({
    "params": run.data.params,
    "curve": sorted((point.step, point.value) for point in curve),
    "headline": run.data.metrics["throughput"],
    "files_match": found == manifest["files"],
    "version": registered.version,
    "fast": [model.tags["ngraph.batch_sizes"] for model in fast],
    "top": top.data.params["compiler"],
}))
"""


def python(code: str, *arguments: str, cwd: Path) -> str:
    """Run a script where this package cannot be imported."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


def test_a_plain_client_reads_everything_back(
    server_uri: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    record = study_record(tmp_path / "study", study_id="read-back")
    recorder = Recorder(server_uri, "read-back")
    recorder.preflight()
    recorder.open(record, tmp_path / "study")
    for key in record.lanes:
        recorder.record_lane(record, key)
    recorder.close(record, "FINISHED")
    assert capfd.readouterr().out == ""
    assert recorder.where()["run"].startswith(f"{server_uri}/#/experiments/")
    assert recorder.where()["run"].endswith("?workflowType=machine_learning")
    assert "ui" not in recorder.where()
    read = json.loads(python(READER, server_uri, "read-back", lane_id(record, "resnet18", "openvino"), cwd=tmp_path))
    assert read["params"]["flag.streams"] == "1 (batch 1); 2 (batch 2); 4 (batch 4)"
    assert [step for step, _ in read["curve"]] == [1, 2, 4]
    assert read["headline"] == pytest.approx(read["curve"][-1][1])
    assert read["files_match"]
    assert read["fast"] == ["4"]
    assert read["top"] == "openvino"
    frame = results.load(server_uri, ["read-back"])
    assert len(frame) == 18
    assert frame["model_id"].notna().sum() == 15


def test_the_run_that_mlflow_run_made_becomes_the_study_run(server_uri: str, tmp_path: Path) -> None:
    (tmp_path / "MLproject").write_text(
        "name: probe\nentry_points:\n  main:\n    parameters:\n"
        '      device: {type: string, default: xeon}\n      resume: {type: string, default: ""}\n'
        f'    command: "{sys.executable} benchmark.py {{device}} {{resume}}"\n'
    )
    (tmp_path / "benchmark.py").write_text(
        textwrap.dedent("""
        import os
        from pathlib import Path
        from mlflow_ngraph.tracking.recorder import Recorder
        from mlflow_ngraph.tracking.study_run import HANDED_OVER
        from tests.support.records import study_record

        record = study_record(Path("study"), study_id="attached")
        os.environ[HANDED_OVER] = os.environ["MLFLOW_RUN_ID"]  # as the entry point does
        recorder = Recorder()
        recorder.preflight()
        recorder.open(record, Path("study"))
        for key in record.lanes:
            recorder.record_lane(record, key)
        recorder.close(record, "FINISHED")
        """)
    )
    environment = {
        **os.environ,
        "MLFLOW_TRACKING_URI": server_uri,
        "NGRAPH_DEVICE": "xeon",
        "PYTHONPATH": f"{ROOT}",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    command = [sys.executable, "-m", "mlflow", "run", ".", "--env-manager", "local", "--experiment-name", "attached"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stderr
    client = MlflowClient(server_uri)
    experiment = client.get_experiment_by_name("attached").experiment_id
    (study,) = client.search_runs([experiment], f"tags.`{Tag.KIND}` = 'study'")
    assert study.data.tags["mlflow.source.type"] == "PROJECT"
    assert study.data.params["resume"] == "''"
    assert study.data.params["study.device"] == "xeon"
    assert study.info.status == "FINISHED"
    lanes = client.search_runs([experiment], f"tags.`{Tag.PARENT}` = '{study.info.run_id}'")
    assert len(lanes) == 6
    assert len(client.search_runs([experiment])) == 7
