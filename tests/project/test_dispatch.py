"""Where a study runs, and that the MLflow run always ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from mlflow import MlflowClient

from mlflow_ngraph.cli import sub_projects
from mlflow_ngraph.cli.app import run as cli
from mlflow_ngraph.devices.registry import create
from mlflow_ngraph.errors import NGraphError, UsageError

ROOT = Path(__file__).parents[2]
TINY = "block:mha?width=128"


@pytest.fixture
def mlflow_run(sqlite_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A run as 'mlflow run' creates it, with the environment that it sets."""
    client = MlflowClient(sqlite_uri)
    experiment = client.create_experiment("mine", artifact_location=(tmp_path / "artifacts").as_uri())
    run_id: str = client.create_run(experiment, tags={"mlflow.project.entryPoint": "benchmark"}).info.run_id
    monkeypatch.setenv("MLFLOW_TRACKING_URI", sqlite_uri)
    monkeypatch.setenv("MLFLOW_RUN_ID", run_id)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", experiment)
    monkeypatch.delenv(sub_projects.ENV_MANAGER, raising=False)
    return run_id


def status(uri: str, run_id: str) -> str:
    return MlflowClient(uri).get_run(run_id).info.status


def test_compilers_that_are_here_are_not_lacking() -> None:
    assert sub_projects.lacking(["identity", "onnxruntime"]) == {}


def test_compilers_that_are_not_here_are_lacking_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tvm", None)
    assert sub_projects.lacking(["identity", "tvm"]) == {"tvm": "the package apache-tvm is not installed"}


def test_the_manager_of_this_run_makes_the_next_environment(mlflow_run: str, sqlite_uri: str) -> None:
    MlflowClient(sqlite_uri).set_tag(mlflow_run, "mlflow.project.env", "virtualenv")
    assert sub_projects.env_manager(mlflow_run) == "virtualenv"


def test_the_variable_wins(mlflow_run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(sub_projects.ENV_MANAGER, "conda")
    assert sub_projects.env_manager(mlflow_run) == "conda"
    monkeypatch.setenv(sub_projects.ENV_MANAGER, "docker")
    with pytest.raises(UsageError, match="NGRAPH_ENV_MANAGER: unknown environment manager 'docker': allowed: uv, "):
        sub_projects.env_manager(mlflow_run)


@pytest.mark.parametrize(("tool", "manager"), [("uv", "uv"), ("pyenv", "virtualenv"), ("conda", "conda")])
def test_else_the_one_that_is_installed(
    tool: str, manager: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / tool).write_text("#!/bin/sh\n")
    (tmp_path / tool).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(sub_projects.ENV_MANAGER, raising=False)
    assert sub_projects.env_manager(None) == manager


def test_without_any_manager_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv(sub_projects.ENV_MANAGER, raising=False)
    with pytest.raises(UsageError, match="pip install uv"):
        sub_projects.env_manager(None)


def test_this_machine_has_no_sub_project() -> None:
    with pytest.raises(UsageError, match="device 'host' has no sub-project here"):
        sub_projects.dispatch(create("host"), {})


@pytest.mark.usefixtures("compilers")
def test_a_study_that_needs_another_environment_stays_the_same_run(
    mlflow_run: str, sqlite_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dispatched for real; both environments are this one, told that it lacks a compiler."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv(sub_projects.ENV_MANAGER, "local")
    monkeypatch.setenv("NGRAPH_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sub_projects, "lacking", lambda compilers: {"onnxruntime": "not here"})
    monkeypatch.setattr(sub_projects, "die_with_parent", lambda: None)
    arguments = ["--device", "xeon", "--study", "smoke", "--workloads", TINY, "--compilers", "identity"]
    assert cli(["project", *arguments, "--batch-sizes", "1", "--precision", "", "--repetitions", "3"]) == 0
    client = MlflowClient(sqlite_uri)
    runs = client.search_runs([client.get_run(mlflow_run).info.experiment_id])
    (study,) = [run for run in runs if run.data.tags.get("ngraph.kind") == "study"]
    assert (study.info.run_id, study.info.status) == (mlflow_run, "FINISHED")
    (lane,) = [run for run in runs if run.data.tags.get("ngraph.kind") == "lane"]
    assert lane.data.tags["mlflow.parentRunId"] == mlflow_run


@pytest.mark.usefixtures("compilers")
def test_a_sub_project_that_fails_fails_the_run(
    mlflow_run: str, sqlite_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv(sub_projects.ENV_MANAGER, "local")
    with pytest.raises(NGraphError, match=r"^sub-project entrypoints/xeon \(local\): Run .* failed$"):
        sub_projects.dispatch(create("xeon"), {"study": "no-such-study"})
    assert status(sqlite_uri, mlflow_run) == "FAILED"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--study", "quik"], "no study 'quik': did you mean 'quick'?"),
        (["--study", "smoke", "--device", "xenon"], "unknown device 'xenon': did you mean 'xeon'?"),
        (["--study", "smoke", "--resume", "maybe"], "resume: expected auto, always, never, found 'maybe'"),
        (["--study", "smoke", "--repetitions", "many"], "repetitions: expected a whole number, found 'many'"),
        (["--study", "smoke", "--mode", "fast"], "mode: expected 'sync' or 'async', found 'fast'"),
        (["--study", "smoke", "--x", "7"], "No such option '--x'"),
    ],
)
def test_wrong_parameters_are_one_line_and_fail_the_run(
    arguments: list[str], message: str, mlflow_run: str, sqlite_uri: str, monkeypatch: pytest.MonkeyPatch, capfd
) -> None:
    monkeypatch.setattr(sub_projects, "die_with_parent", lambda: None)
    assert cli(["project", *arguments]) == 2
    said = capfd.readouterr().err.strip().splitlines()
    assert message in said[-1]
    assert said[-1].startswith("error: ")
    if "--x" not in arguments:
        assert status(sqlite_uri, mlflow_run) == "FAILED"


def test_whatever_happens_the_run_ends(mlflow_run: str, sqlite_uri: str) -> None:
    with pytest.raises(ZeroDivisionError), sub_projects.run_ends_with_process():
        _ = 1 / 0
    assert status(sqlite_uri, mlflow_run) == "FAILED"


def test_a_run_that_mlflow_did_not_make_for_a_project_is_left_alone(mlflow_run: str, sqlite_uri: str) -> None:
    MlflowClient(sqlite_uri).delete_tag(mlflow_run, "mlflow.project.entryPoint")
    with pytest.raises(ZeroDivisionError), sub_projects.run_ends_with_process():
        _ = 1 / 0
    assert status(sqlite_uri, mlflow_run) == "RUNNING"


def test_a_run_that_has_a_whole_study_stays_finished(mlflow_run: str, sqlite_uri: str) -> None:
    MlflowClient(sqlite_uri).set_terminated(mlflow_run, "FINISHED")
    with pytest.raises(KeyboardInterrupt), sub_projects.run_ends_with_process():
        raise KeyboardInterrupt
    assert status(sqlite_uri, mlflow_run) == "FINISHED"


def test_a_signal_ends_the_run_as_killed(mlflow_run: str, sqlite_uri: str) -> None:
    # In a process of its own: a compiler's runtime that other tests load enlarges the signal frame, and the small
    # signal stack of pytest's fault handler does not hold it any more.
    code = textwrap.dedent(
        """
        import signal
        from mlflow_ngraph.cli.sub_projects import run_ends_with_process
        try:
            with run_ends_with_process():
                signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
            print("interrupted")
        """
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "interrupted" in done.stdout
    assert status(sqlite_uri, mlflow_run) == "KILLED"


def test_without_an_mlflow_run_there_is_none_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_RUN_ID", raising=False)
    with pytest.raises(ValueError, match="mine"), sub_projects.run_ends_with_process():
        raise ValueError("mine")


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_an_entry_point_hears_of_the_end_of_mlflow(signum: int, tmp_path: Path) -> None:
    said = tmp_path / "said"
    child = textwrap.dedent(
        f"""
        import pathlib, signal, sys, time
        from mlflow_ngraph.cli.sub_projects import die_with_parent
        said = pathlib.Path({str(said)!r})
        signal.signal(signal.SIGTERM, lambda *_: (said.write_text("told"), sys.exit()))
        die_with_parent()
        said.write_text("ready")
        time.sleep(60)
        """
    )
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    process = subprocess.Popen([sys.executable, "-c", parent], cwd=ROOT)
    wait_for(said, "ready")
    process.send_signal(signum)
    process.wait()
    wait_for(said, "told")


def wait_for(path: Path, content: str, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if path.exists() and path.read_text() == content:
            return
        time.sleep(0.05)
    pytest.fail(f"{path.name} never said {content!r}")
