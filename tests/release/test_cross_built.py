"""An engine of TensorRT for RTX that was built without a GPU goes through a server to a device, or is refused in one line."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from mlflow import MlflowClient

from mlflow_ngraph import runner
from mlflow_ngraph.compilers.base import Availability, Target
from mlflow_ngraph.compilers.registry import create
from mlflow_ngraph.compilers.tensorrt_rtx.adapter import TensorRTRTX
from mlflow_ngraph.devices import probes
from mlflow_ngraph.engines import compatibility
from mlflow_ngraph.engines.files import digest_files
from mlflow_ngraph.engines.package import open_package
from mlflow_ngraph.engines.verification import verify
from mlflow_ngraph.errors import EngineError
from mlflow_ngraph.execute.record import EngineRecord
from mlflow_ngraph.study import parse
from mlflow_ngraph.tracking import download
from mlflow_ngraph.tracking.schema import Tag
from mlflow_ngraph.tracking.shared_engines import ServerEngines

INSTALLED = TensorRTRTX.building()
HAS_GPU = not probes.gpu_obstacle()
pytestmark = [
    pytest.mark.usefixtures("compilers"),
    pytest.mark.skipif(not INSTALLED.available, reason=f"tensorrt-rtx: {INSTALLED.reason}"),
]


@dataclass(frozen=True)
class Built:
    """An engine on a server, and its package as it comes from there."""

    uri: str
    engine: EngineRecord
    model_id: str
    package: Path


@pytest.fixture(scope="module")
def built(processes: None, sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    home = tmp_path_factory.mktemp("builder")
    shutil.copyfile(sqlite_template, home / "mlflow.db")
    uri = f"sqlite:///{home / 'mlflow.db'}"
    study = parse(
        {
            "name": "elsewhere",
            "workloads": ["block:conv?width=8&depth=2&image_size=16"],
            "compilers": ["tensorrt-rtx"],
            "batch_sizes": [1],
            "build_for": "gpu:sm89",
        }
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        outcome = runner.run_study(study, home=home, tracking_uri=uri, experiment="elsewhere")
    (lane,) = outcome.record.lanes.values()
    assert str(lane.cells[1].verdict) == "built", lane.cells[1].reason
    assert outcome.exit_code == 0
    client = MlflowClient(uri)
    (model,) = client.search_logged_models([client.get_experiment_by_name("elsewhere").experiment_id])
    assert model.tags[Tag.VERDICT] == "built"
    package = home / "package"
    download.pull(download.locate(f"models:/{model.model_id}", uri), package)
    return Built(uri, lane.engines[0], model.model_id, package)


@pytest.fixture
def ada(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with the GPU that the engine was built for, as far as it can be seen without a runtime."""
    on(monkeypatch, "8.9")


def on(monkeypatch: pytest.MonkeyPatch, capability: str, version: str = INSTALLED.version or "") -> None:
    seen = Availability(True, version)
    monkeypatch.setattr(TensorRTRTX, "building", classmethod(lambda cls: seen))
    monkeypatch.setattr(TensorRTRTX, "availability", classmethod(lambda cls: seen))
    monkeypatch.setattr(probes, "gpu", lambda: probes.Gpu(f"a GPU with {capability}", 12282, "580.42", capability))


def test_the_package_says_what_it_needs_and_that_nobody_ran_it(built: Built) -> None:
    manifest = open_package(built.package).manifest
    assert manifest.spec.requires["gpu"] == "compute capability 8.9"
    assert manifest.spec.requires["tensorrt-rtx"] == INSTALLED.version
    assert [(figures.verdict, figures.metrics.get("throughput")) for figures in manifest.figures] == [("built", None)]
    assert not manifest.spec.target.build_for
    assert (built.package / "engine" / "probe.npz").is_file()


def test_the_device_for_which_it_was_built_may_load_it(built: Built, ada: None) -> None:
    assert compatibility.incompatibility(open_package(built.package).manifest) == ""


def test_the_cache_of_the_server_gives_it_to_that_device_with_its_digests(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on(monkeypatch, "8.9")
    there = create("tensorrt-rtx").requires(Target(accelerator="cuda"))
    found = ServerEngines(built.uri).fetch(built.engine.key, there, tmp_path / "there", pytest.fail)
    assert found is not None
    assert digest_files(tmp_path / "there") == dict(built.engine.files)
    on(monkeypatch, "8.6")
    told: list[str] = []
    other = create("tensorrt-rtx").requires(Target(accelerator="cuda"))
    assert ServerEngines(built.uri).fetch(built.engine.key, other, tmp_path / "other", told.append) is None
    assert "it needs gpu compute capability 8.9, here is compute capability 8.6" in told[0]


@pytest.mark.parametrize(
    ("capability", "version", "reason"),
    [
        ("8.6", INSTALLED.version, "it needs gpu compute capability 8.9, here is compute capability 8.6"),
        ("8.9", "9.9.9", f"it needs tensorrt-rtx {INSTALLED.version}, here is 9.9.9"),
    ],
    ids=["target", "version"],
)
def test_a_device_that_it_does_not_fit_is_told_so(
    built: Built, monkeypatch: pytest.MonkeyPatch, capability: str, version: str, reason: str
) -> None:
    on(monkeypatch, capability, version)
    found = verify(built.package)
    assert [check.status for check in found.checks] == ["ok", "problem", "skipped"]
    assert reason in found.checks[1].found
    assert "\n" not in found.checks[1].found


@pytest.mark.parametrize("damage", ["truncated", "altered"])
def test_a_plan_that_is_not_what_was_built_is_not_loaded(built: Built, ada: None, tmp_path: Path, damage: str) -> None:
    package = Path(shutil.copytree(built.package, tmp_path / "package"))
    plan = package / "engine" / "model-b1.plan"
    content = bytearray(plan.read_bytes())
    if damage == "truncated":
        del content[len(content) // 2 :]
    else:
        content[len(content) // 2] ^= 1
    plan.chmod(0o644)
    plan.write_bytes(content)
    found = verify(package)
    assert [check.status for check in found.checks] == ["problem", "skipped", "skipped"]
    assert found.checks[0].found.endswith("model-b1.plan has changed since it was written")
    with pytest.raises(EngineError, match=r"model-b1\.plan has changed"):
        open_package(package)


@pytest.mark.skipif(HAS_GPU, reason="there is a GPU")
def test_without_a_gpu_nothing_is_loaded(built: Built) -> None:
    found = verify(built.package)
    assert "tensorrt-rtx cannot run here: " in found.checks[1].found
    assert "no NVIDIA GPU" in found.checks[1].found


def test_keys_do_not_depend_on_who_builds() -> None:
    from mlflow_ngraph.engines.key import recipe

    compiler = create("tensorrt-rtx")
    here = Target(accelerator="cuda", threads=2, build_for="gpu:sm89")
    materials = {"digest": "d", "seed": 0, "versions": {}}
    first = recipe(compiler, here, [1], materials)
    with pytest.MonkeyPatch.context() as patch:
        on(patch, "8.9")
        second = recipe(compiler, replace(here, build_for="", threads=16), [1], materials)
    assert first.key() == second.key()
