"""An engine that is pulled stands in its place whole and proven, or nothing stands there."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

import mlflow_ngraph
from mlflow_ngraph.devices import probes
from mlflow_ngraph.engines.files import sha256
from mlflow_ngraph.engines.manifest import DIGEST_FILE
from mlflow_ngraph.engines.package import open_package
from mlflow_ngraph.engines.staging import staging_directory
from mlflow_ngraph.errors import EngineError, TrackingError, UsageError
from mlflow_ngraph.release import pulling
from mlflow_ngraph.release.pulling import pull_engine
from mlflow_ngraph.tracking import download
from mlflow_ngraph.tracking.download import Remote, locate
from mlflow_ngraph.tracking.schema import Kind, Tag
from mlflow_ngraph.tracking.sources import EngineFilter
from tests.support.logged import COMPILERS, WORKLOAD, Logged
from tests.support.published import directory_of, of_another_model, own_files, publish, rewrite

FLIPS = 200


@pytest.fixture
def remote(logged: Logged, sqlite_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Remote:
    """An engine on a server of one's own, whose files may be changed."""
    return publish(logged.packages["onnxruntime"], sqlite_uri, monkeypatch)


@pytest.fixture
def nothing_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is refused is refused before a runtime is told where the engine is."""

    class Never:
        def __init__(self, *_: Any) -> None:
            pass

        def __enter__(self) -> Never:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def answer(self, *_: Any) -> None:
            pytest.fail("a runtime was given files that are not what was logged")

    monkeypatch.setattr(pulling, "LoadCheck", Never)


def refused(remote: Remote, target: Path, name: str) -> str:
    shutil.rmtree(target.parent / f".{target.name}.pull", ignore_errors=True)  # what came before is not what is tried
    with pytest.raises(EngineError) as error:
        pull_engine(remote, target)
    assert name in str(error.value)
    assert not target.exists()
    return str(error.value)


def here(target: Path) -> list[str]:
    """What lies in the directory of a target."""
    return sorted(path.name for path in target.parent.iterdir() if target.name in path.name)


@pytest.mark.parametrize("compiler", COMPILERS)
def test_an_engine_is_brought_proven_and_loaded(logged: Logged, tmp_path: Path, compiler: str) -> None:
    told: list[tuple[int, int]] = []
    target = tmp_path / "new" / "engine"
    pulled = mlflow_ngraph.pull(
        f"models:/{logged.models[compiler]}",
        target,
        tracking_uri=logged.uri,
        progress=lambda done, total: told.append((done, total)),
    )
    assert (pulled.state, pulled.directory) == ("pulled", target)
    assert [(check.name, check.status) for check in pulled.checks] == [
        ("trust", "ok"), ("digests", "ok"), ("compatibility", "ok"), ("probe", "ok"),
    ]  # fmt: skip
    assert own_files(target) == own_files(logged.packages[compiler])
    assert here(target) == ["engine"]
    sizes = pulled.package.manifest.size_bytes
    assert told[-1] == (sizes, sizes)
    with mlflow_ngraph.load_model(target) as engine:
        engine.warmup()


def test_an_engine_that_is_there_is_verified_and_not_brought_again(
    remote: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = pull_engine(remote, tmp_path / "engine")
    before = {path: path.stat().st_mtime_ns for path in first.directory.rglob("*")}
    monkeypatch.setattr(download, "fill", lambda *_: pytest.fail("it was brought again"))
    second = pull_engine(remote, tmp_path / "engine", force=True)
    assert second.state == "unchanged"
    assert [check.status for check in second.checks] == ["ok"] * 5
    assert {path: path.stat().st_mtime_ns for path in first.directory.rglob("*")} == before


def test_without_a_target_it_has_a_place_of_its_own(remote: Remote, tmp_path: Path) -> None:
    pulled = pull_engine(remote, home=tmp_path / "home")
    assert pulled.directory.parent == tmp_path / "home" / "pulled"
    assert pulled.directory.name.endswith(f"-onnxruntime-fp32-b1-4-{pulled.package.digest[:8]}")
    assert pull_engine(remote, home=tmp_path / "home").state == "unchanged"


def test_what_stands_there_is_not_replaced_unless_it_is_an_engine_and_that_is_asked(
    logged: Logged, remote: Remote, tmp_path: Path
) -> None:
    target = tmp_path / "engine"
    shutil.copytree(logged.packages["openvino"], target)
    with pytest.raises(UsageError, match=r"has another engine, .* by openvino, fp32, batch 1, 4: .* --force"):
        pull_engine(remote, target)
    assert open_package(target).manifest.spec.compiler == "openvino"
    assert pull_engine(remote, target, force=True).state == "replaced"
    assert open_package(target).manifest.spec.compiler == "onnxruntime"
    assert here(target) == ["engine"]
    mine = tmp_path / "mine"
    mine.mkdir()
    assert pull_engine(remote, mine).state == "pulled"
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("years of work")
    for force in (False, True):
        with pytest.raises(UsageError, match="other exists and is no engine package"):
            pull_engine(remote, other, force=force)
    assert (other / "thesis.txt").read_text() == "years of work"


def test_a_model_of_mlflow_becomes_one_again(remote: Remote, tmp_path: Path) -> None:
    pull_engine(remote, tmp_path / "engine")
    (tmp_path / "engine" / "MLmodel").unlink()
    found = pull_engine(remote, tmp_path / "engine")
    assert (found.state, [check.status for check in found.checks if check.name == "mlflow"]) == ("unchanged", ["ok"])
    assert (tmp_path / "engine" / "MLmodel").exists()
    open_package(tmp_path / "engine")


def test_no_engine_is_brought_into_another_one(remote: Remote, tmp_path: Path, logged: Logged) -> None:
    other = logged.copy("openvino", tmp_path / "other")
    with pytest.raises(UsageError, match="is inside of the engine package"):
        pull_engine(remote, other / "engine" / "new")
    open_package(other)


def test_a_damaged_engine_is_named_and_mended_when_asked(remote: Remote, tmp_path: Path) -> None:
    target = tmp_path / "engine"
    pull_engine(remote, target)
    for name in ("engine/probe.npz", "manifest.json", "MLmodel"):
        file = target / name
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
        with pytest.raises(EngineError, match=f"{name} (has changed|is not).*pull it again with --force"):
            pull_engine(remote, target)
        assert pull_engine(remote, target, force=True).state == "replaced"
        open_package(target, remote.digest)


@pytest.mark.usefixtures("nothing_loads")
def test_a_flipped_byte_anywhere_on_the_server_is_refused(remote: Remote, tmp_path: Path) -> None:
    source = directory_of(remote)
    sizes = {path: (source / path).stat().st_size for path in own_files(source) if path != DIGEST_FILE}
    rng = random.Random(0)
    chosen = [*sizes, *rng.choices(list(sizes), k=FLIPS - len(sizes))]
    for path in chosen:
        file, place = source / path, rng.randrange(sizes[path])
        whole = file.read_bytes()
        file.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << rng.randrange(8))]) + whole[place + 1 :])
        refused(remote, tmp_path / "engine", path.replace("manifest.json", "the manifest"))
        file.write_bytes(whole)
    assert len(chosen) == FLIPS


@pytest.mark.usefixtures("nothing_loads")
def test_whatever_is_cut_off_or_gone_on_the_server_is_refused(remote: Remote, tmp_path: Path) -> None:
    source = directory_of(remote)
    for path in own_files(source):
        if path == DIGEST_FILE:
            continue  # is written from the digest that the server has in a tag
        file, named = source / path, path.replace("manifest.json", "manifest")
        whole = file.read_bytes()
        file.write_bytes(whole[: len(whole) // 2])
        refused(remote, tmp_path / "engine", named)
        file.unlink()
        refused(remote, tmp_path / "engine", named)
        file.write_bytes(whole)


@pytest.mark.usefixtures("nothing_loads")
def test_files_that_change_places_are_refused(remote: Remote, tmp_path: Path) -> None:
    source = directory_of(remote)
    one, other = source / "engine" / "probe.npz", source / "engine" / "spec.json"
    one.rename(tmp_path / "aside")
    other.rename(one)
    (tmp_path / "aside").rename(other)
    assert "is not what was logged" in refused(remote, tmp_path / "engine", "engine/")


@pytest.mark.usefixtures("nothing_loads")
def test_an_edited_manifest_is_refused_however_well_it_is_edited(remote: Remote, tmp_path: Path) -> None:
    """The digest beside it agrees, and those of all files do; the server has another one in a tag."""
    source = directory_of(remote)
    rewrite(source, lambda manifest: manifest["spec"]["target"].update(precision="bf16"))
    refused(remote, tmp_path / "engine", "the manifest of engine")
    probe = source / "engine" / "probe.npz"
    probe.write_bytes(probe.read_bytes() + b"\0")
    rewrite(source, lambda manifest: manifest["files"].update({"engine/probe.npz": sha256(probe)}))
    refused(remote, tmp_path / "engine", "the manifest of engine")


@pytest.mark.usefixtures("nothing_loads")
def test_what_the_server_has_besides_is_not_brought(remote: Remote, tmp_path: Path, logged: Logged) -> None:
    source = directory_of(remote)
    (source / "engine" / "sitecustomize.py").write_text("raise SystemExit")
    with pytest.raises(pytest.fail.Exception):  # it gets as far as the runtime
        pull_engine(remote, tmp_path / "engine")
    ground = tmp_path / ".engine.pull" / "package"
    assert set(own_files(ground)) == set(own_files(source)) - {"engine/sitecustomize.py"}


def test_outputs_of_another_model_leave_nothing(
    logged: Logged, sqlite_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything is as it was logged, but it was logged wrong."""
    package = logged.copy("onnxruntime", tmp_path / "package")
    of_another_model(package)
    remote = publish(package, sqlite_uri, monkeypatch)
    refused(remote, tmp_path / "engine", "its outputs are not those of the model")
    assert here(tmp_path / "engine") == []


@pytest.mark.usefixtures("nothing_loads")
@pytest.mark.parametrize(
    ("compiler", "change", "said"),
    [
        ("openvino", {"requires": {"openvino": "2031.1.0"}}, "it needs openvino 2031.1.0, here is 20"),
        ("onnxruntime", {"requires": {"isa": "aarch64 neon sve"}}, "here lacks aarch64 neon sve"),
        (
            "onnxruntime",
            {"requires": {"gpu": "NVIDIA H100, compute capability 9.0"}, "loading": {"accelerator": "cuda"}},
            "it needs gpu NVIDIA H100, compute capability 9.0, here is NVIDIA GeForce RTX 4070, compute capability 8.9",
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_it_is_downloaded(
    logged: Logged,
    sqlite_uri: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    compiler: str,
    change: dict[str, Any],
    said: str,
) -> None:
    monkeypatch.setattr(probes, "gpu", lambda: probes.Gpu("NVIDIA GeForce RTX 4070", 12282, "555.42.06", "8.9"))
    package = logged.copy(compiler, tmp_path / "package")

    def alter(manifest: dict[str, Any]) -> None:
        manifest["spec"]["requires"].update(change["requires"])
        manifest["spec"]["target"].update(change.get("loading", {}))

    rewrite(package, alter)
    remote = publish(package, sqlite_uri, monkeypatch)
    monkeypatch.setattr(download, "fill", lambda *_: pytest.fail("it was downloaded"))
    message = refused(remote, tmp_path / "engine", said)
    assert f"build it here: mlflow-ngraph benchmark --workloads '{WORKLOAD.replace('?', '?depth=1&')}'" in message
    assert here(tmp_path / "engine") == []


def test_a_target_that_nobody_knows_is_refused(logged: Logged, tmp_path: Path) -> None:
    package = logged.copy("onnxruntime", tmp_path / "package")
    rewrite(package, lambda manifest: manifest["spec"]["target"].update(power="nuclear"))
    with pytest.raises(
        EngineError, match=r"manifest.json is not readable: spec.target.power: Unexpected keyword argument"
    ):
        mlflow_ngraph.load_model(package)


def test_another_call_waits_and_finds_it_there(remote: Remote, tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor
    from concurrent.futures import TimeoutError as StillWaiting

    target = tmp_path / "engine"
    with ThreadPoolExecutor(1) as pool:
        with staging_directory(target):
            other = pool.submit(pull_engine, remote, target)
            with pytest.raises(StillWaiting):
                other.result(1.0)
        assert other.result(120).state == "pulled"
        assert pull_engine(remote, target).state == "unchanged"
    assert here(target) == ["engine"]


def test_a_place_that_cannot_be_written_is_said(remote: Remote, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write to"):
        pull_engine(remote, tmp_path / "file" / "engine")


def test_a_disk_that_is_too_small_is_said(remote: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = shutil.disk_usage(tmp_path)._replace(free=100)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: full)
    with pytest.raises(UsageError, match=r" has 0 MB free, and the engine needs \d+ MB: choose another place"):
        pull_engine(remote, tmp_path / "engine")
    assert here(tmp_path / "engine") == []


def runs_of(logged: Logged, kind: str) -> dict[str, str]:
    """Ids of runs by compiler."""
    client = MlflowClient(logged.uri)
    found = client.search_runs(
        [client.get_experiment_by_name("packages").experiment_id], f"tags.`{Tag.KIND}` = '{kind}'"
    )
    return {run.data.tags.get(Tag.COMPILER, ""): run.info.run_id for run in found}


@pytest.mark.parametrize("form", ["{}", "runs:/{}", "runs:/{}/"])
def test_a_lane_run_with_one_engine_names_it(logged: Logged, tmp_path: Path, form: str) -> None:
    run_id = runs_of(logged, Kind.LANE)["openvino"]
    pulled = pull_engine(form.format(run_id), tmp_path / "engine", tracking_uri=logged.uri)
    assert pulled.remote.model_id == logged.models["openvino"]


def test_a_study_run_has_several_engines_to_choose_from(logged: Logged, tmp_path: Path) -> None:
    run_id = runs_of(logged, Kind.STUDY)[""]

    def pull(**wanted: Any) -> str:
        return pull_engine(
            run_id, tmp_path / "engine", tracking_uri=logged.uri, wanted=EngineFilter(**wanted)
        ).remote.model_id

    with pytest.raises(UsageError) as error:
        pull()
    for name, model_id in logged.models.items():
        assert f"models:/{model_id} (" in str(error.value)
        assert f"by {name}, fp32, batch 1, 4)" in str(error.value)
    assert "choose with --workloads, --compilers, --precision or --batch-sizes" in str(error.value)
    with pytest.raises(UsageError, match=r"no engine that fits --compilers tvm --batch-sizes 1: it has models:/m-"):
        pull(compilers=["tvm"], batch_sizes=[1])
    assert pull(compilers=["openvino"], batch_sizes=[4]) == logged.models["openvino"]


@pytest.mark.parametrize(
    ("source", "error", "said"),
    [
        ("models:/nothing@here", TrackingError, "cannot find models:/nothing@here"),
        ("models:/m-00000000000000000000000000000000", TrackingError, "cannot find models:/m-0000"),
        ("0" * 32, TrackingError, "cannot find the engines of run 0000"),
        ("resnet18", TrackingError, "'resnet18' names no engine"),
    ],
)
def test_what_is_not_there_is_said(
    sqlite_uri: str, tmp_path: Path, source: str, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        pull_engine(source, tmp_path / "engine", tracking_uri=sqlite_uri)


def test_a_registered_version_is_pulled_by_alias_and_number(
    logged: Logged, sqlite_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = publish(logged.packages["onnxruntime"], sqlite_uri, monkeypatch, registered_model_name="block")
    MlflowClient(sqlite_uri).set_registered_model_alias("block", "xeon", "1")
    for uri in ("models:/block@xeon", "models:/block/1"):
        assert locate(uri, sqlite_uri) == remote
        assert pull_engine(uri, tmp_path / "engine", tracking_uri=sqlite_uri).remote == remote


def test_a_model_alone_is_not_chosen_from(remote: Remote, sqlite_uri: str) -> None:
    with pytest.raises(UsageError, match=r"is one engine: --batch-sizes 8 chooses among those of a run"):
        pull_engine(f"models:/{remote.model_id}", tracking_uri=sqlite_uri, wanted=EngineFilter(batch_sizes=[8]))
