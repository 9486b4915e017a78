"""Every process that the product starts is listed, has no credential that it does not need, and runs no file that lies about."""

from __future__ import annotations

import ast
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mlflow_ngraph import torchvision_hook
from mlflow_ngraph.devices import probes
from mlflow_ngraph.execute import worker
from mlflow_ngraph.processes import environment, fork_server
from mlflow_ngraph.processes.child import Child
from mlflow_ngraph.processes.warden import Warden
from mlflow_ngraph_bisect import reproduction
from mlflow_ngraph_tvm import kernels, pool

ROOT = Path(__file__).parents[2]
CLEAN = {
    *("mlflow_ngraph/processes/starting.py", "mlflow_ngraph/processes/fork_server.py"),
    *("mlflow_ngraph/processes/fork_server_child.py", "mlflow_ngraph/processes/warden.py"),
    *("plugins/tvm/mlflow_ngraph_tvm/pool.py", "plugins/tvm/mlflow_ngraph_tvm/kernels.py"),
    *("mlflow_ngraph/devices/probes.py", "mlflow_ngraph/torchvision_hook.py", "mlflow_ngraph/workloads/writing_out.py"),
    *("plugins/bisect/mlflow_ngraph_bisect/reproduction.py", "plugins/serve/mlflow_ngraph_serve/process.py"),
    "plugins/serve/mlflow_ngraph_serve/following/engine_server.py",
}
"""Files that start processes without credentials."""
NEED_LOGINS = {
    "plugins/serve/mlflow_ngraph_serve/following/follower.py": "pulls from the tracking server",
    "plugins/serve/mlflow_ngraph_serve/hosting/server.py": "has its database, store and secret key",
    "plugins/fleet/mlflow_ngraph_fleet/ssh.py": "asks the agent of OpenSSH for keys",
    "plugins/fleet/mlflow_ngraph_fleet/slurm_engine.py": "is a tool of the cluster, with the user's account",
    "plugins/fleet/mlflow_ngraph_fleet/node_agent.py": "runs on a node, with what the client sent there",
    "plugins/fleet/mlflow_ngraph_fleet/launch.py": "runs on a device, with the logins of its env_file",
}
"""The others, with what for; children with a `Parent` that prepare a model or record a study ask `of_threads` for them."""
SECRETS = {
    **dict.fromkeys(("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "HF_TOKEN", "GITHUB_TOKEN"), "zqS"),
    **dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AZURE_CLIENT_SECRET"), "zqS"),
    **dict.fromkeys(("GOOGLE_API_KEY", "DATABRICKS_HOST", "WANDB_API_KEY", "PGPASSWORD", "PGPASS", "MYSQL_PWD"), "zqS"),
    **dict.fromkeys(("MY_PW", "GH_PAT", "NETRC_AUTH", "DEPLOY_KEY", "KEYRING_PASSPHRASE"), "zqS"),
    "MLFLOW_BACKEND_STORE_URI": "postgresql://anna:zqS@db.lab/mlflow",
    "HTTPS_PROXY": "http://anna:zqS@proxy.lab:3128",
    "UNKNOWN": "ghp_zqS0123456789abcdefghij",
}
_STARTING = {
    *("subprocess.Popen", "subprocess.run", "subprocess.call", "subprocess.check_call", "subprocess.check_output"),
    *(
        "os.fork",
        "os.forkpty",
        "os.system",
        "os.popen",
        "os.posix_spawn",
        "os.execv",
        "os.execve",
        "os.execvp",
        "os.execvpe",
    ),
}


def test_every_place_that_starts_a_process_is_listed() -> None:
    places = [ROOT / "mlflow_ngraph", *(ROOT / "plugins").glob("*/mlflow_ngraph_*")]
    files = [path for place in places for path in place.rglob("*.py") if "mlflow_ngraph_testing" not in path.parts]
    found = {str(path.relative_to(ROOT)) for path in files if any(_starts(ast.parse(path.read_text(encoding="utf-8"))))}
    assert found == CLEAN | set(NEED_LOGINS)


def _starts(tree: ast.Module) -> Iterator[bool]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func) in _STARTING
        if isinstance(node, ast.ImportFrom) and node.module in ("subprocess", "multiprocessing"):
            yield any(name.name in ("Popen", "run", "Process", "Pool") for name in node.names)


def _child(forked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_server, "_Shared", type("_Shared", (), {"server": None, "users": 0}))  # one of its own
    env = environment.of_threads(1, patient=True)
    with fork_server.shared(), closing(Child(worker.__name__, env, forked=forked)) as child:
        child.request("import", 60, modules=["numpy", "json"], blocked=[], freed_memory="return")
        for process in (child.pid, fork_server._Shared.server and fork_server._Shared.server._process.pid):
            if process:
                assert b"zqS" not in Path(f"/proc/{process}/environ").read_bytes()


def _builder(place: Path, _: pytest.MonkeyPatch) -> None:
    builder = pool.Worker(place, 1)
    builder.start()
    builder.close()


def _script(place: Path, _: pytest.MonkeyPatch) -> None:
    (place / reproduction.SCRIPT).write_text("")
    reproduction.shows(place)


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    "start",
    [
        lambda _, patch: _child(False, patch),
        lambda _, patch: _child(True, patch),
        lambda *_: Warden().close(),
        lambda *_: torchvision_hook.problem(),
        lambda *_: probes._output(["true"]),
        lambda *_: kernels._output("true"),
        _builder,
        _script,
    ],
    ids=["spawned", "forked", "warden", "torchvision", "probes", "objdump", "tvm", "reproduction"],
)
def test_a_child_has_no_credential_and_runs_no_file_that_lies_about(
    start: Callable[[Path, pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[dict[str, str]] = []

    class Watched(subprocess.Popen[Any]):
        def __init__(self, args: list[str], **options: Any) -> None:
            started.append(dict(os.environ if options.get("env") is None else options["env"]))
            super().__init__(args, **options)

    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    for name in ("numpy", "json", "typing", "runpy", "mlflow_ngraph", "torchvision"):
        (here / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.chdir(here)
    monkeypatch.setattr(subprocess, "Popen", Watched)
    start(elsewhere, monkeypatch)
    assert started
    assert not [name for env in started for name, value in env.items() if "zqS" in value]
    assert not (tmp_path / "ran").exists()
