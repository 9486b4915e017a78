"""A package is what was logged, or it is refused before anything loads it, with the file named."""

from __future__ import annotations

import json
import os
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlflow_ngraph import load_model
from mlflow_ngraph.compilers.spec import EngineSpec
from mlflow_ngraph.engines import local_engine
from mlflow_ngraph.engines.files import sha256
from mlflow_ngraph.engines.manifest import DIGEST_FILE, SCHEMA_VERSION, Manifest
from mlflow_ngraph.engines.package import digest_line, open_package
from mlflow_ngraph.engines.probe import FILE as PROBE
from mlflow_ngraph.engines.probe import read_probe
from mlflow_ngraph.errors import EngineError
from tests.support.logged import BATCHES, Logged
from tests.support.published import own_files

FLIPS = 200
BOTH = pytest.mark.parametrize("compiler", ["onnxruntime", "openvino"])


@pytest.fixture(autouse=True)
def _nothing_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is refused here is refused before a runtime is asked."""

    def refuse(*_: Any) -> None:
        pytest.fail("a runtime was given a file that nobody had checked")

    monkeypatch.setattr(local_engine.LoadedEngine, "_engine", refuse)


def npy_of(size: int, given: int) -> bytes:
    """A file of an array that says that it has so many numbers, with so many bytes."""
    head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({size},), }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head.encode() + bytes(given)


def refused(package: Path, name: str, **how: Any) -> str:
    with pytest.raises(EngineError) as error:
        open_package(package, **how)
    assert name in str(error.value)
    with pytest.raises(EngineError):
        load_model(package)
    return str(error.value)


def edit(package: Path, change: Callable[[dict[str, Any]], None], *, believed: bool) -> None:
    """Change the manifest; ``believed`` also changes the digest beside it."""
    path = package / "manifest.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    if believed:
        (package / DIGEST_FILE).write_text(digest_line(sha256(path)))


@BOTH
def test_what_was_logged_says_what_it_is(logged: Logged, compiler: str) -> None:
    package = open_package(logged.packages[compiler])
    spec, origin = package.manifest.spec, package.manifest.origin
    assert spec == EngineSpec.read(package.engine)
    assert (spec.compiler, package.manifest.precision_in_force, spec.batch_sizes) == (compiler, "fp32", BATCHES)
    assert spec.inputs[0].shape[0] == "batch"
    assert spec.digest
    assert spec.requires[compiler] == spec.packages[compiler]
    assert "torch" not in spec.packages
    assert origin.run_id
    assert origin.fingerprint["digest"]
    assert [figures.verdict for figures in package.manifest.figures] == ["ok", "ok"]
    assert package.manifest.figures[0].metrics["throughput"] > 0
    probe = read_probe(package.engine)
    assert [array.shape[0] for array in (*probe.inputs, *probe.outputs, *probe.exact)] == [min(BATCHES)] * 3
    assert probe.exact[0].dtype == "float64"
    assert probe.problem(probe.outputs, "fp32") == ""
    assert "times what rounding does" in probe.problem([probe.outputs[0] * 1.001], "fp32")
    assert "outputs" in probe.problem([], "fp32")
    assert {"engine/probe.npz", "engine/spec.json", "MLmodel"} <= set(package.manifest.files)


@BOTH
def test_one_flipped_byte_anywhere_is_found(logged: Logged, tmp_path: Path, compiler: str) -> None:
    package = logged.copy(compiler, tmp_path / "package")
    sizes = {path: (package / path).stat().st_size for path in own_files(package)}
    rng = random.Random(compiler)
    chosen = [*sizes, *rng.choices(list(sizes), k=FLIPS - len(sizes))]
    for path in chosen:
        file = package / path
        place = rng.randrange(sizes[path])
        whole = file.read_bytes()
        file.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << rng.randrange(8))]) + whole[place + 1 :])
        with pytest.raises(EngineError) as error:
            open_package(package)
        assert path in str(error.value)
        file.write_bytes(whole)
    assert len(chosen) == FLIPS
    open_package(package)


@BOTH
def test_every_file_that_is_cut_off_or_gone_is_named(logged: Logged, tmp_path: Path, compiler: str) -> None:
    package = logged.copy(compiler, tmp_path / "package")
    for path in own_files(package):
        file = package / path
        whole = file.read_bytes()
        file.write_bytes(whole[: len(whole) // 2])
        refused(package, path)
        file.unlink()
        refused(package, path)
        file.write_bytes(whole)
    open_package(package)


def test_swapped_files_are_found(logged: Logged, tmp_path: Path) -> None:
    package = logged.copy("onnxruntime", tmp_path / "package")
    one, other = package / "engine" / PROBE, package / "engine" / "spec.json"
    one.rename(tmp_path / "aside")
    other.rename(one)
    (tmp_path / "aside").rename(other)
    refused(package, PROBE)


def test_engines_do_not_change_places(logged: Logged, tmp_path: Path) -> None:
    package = logged.copy("onnxruntime", tmp_path / "package")
    other = logged.packages["openvino"] / "engine" / "model.xml"
    (package / "engine" / "model.xml").write_bytes(other.read_bytes())
    refused(package, "engine/model.xml is not in the manifest")


@pytest.mark.parametrize(
    "file", ["engine/more.bin", "more.py", "wheels/sitecustomize.py", "wheels/evil-1-py3-none-any.whl"]
)
def test_files_that_nobody_packaged_are_refused(logged: Logged, tmp_path: Path, file: str) -> None:
    package = logged.copy("openvino", tmp_path / "package")
    (package / file).write_bytes(b"")
    refused(package, file)


def test_what_mlflow_adds_to_a_download_is_no_damage(logged: Logged, tmp_path: Path) -> None:
    package = logged.copy("openvino", tmp_path / "package")
    (package / "registered_model_meta").write_text("model_name: x\n")
    open_package(package)


def test_a_link_is_no_file(logged: Logged, tmp_path: Path) -> None:
    package = logged.copy("openvino", tmp_path / "package")
    moved = (package / "engine" / "model.xml").rename(tmp_path / "model.xml")
    (package / "engine" / "model.xml").symlink_to(moved)
    refused(package, "engine/model.xml is a link")
    (package / "engine" / "model.xml").unlink()
    moved.rename(package / "engine" / "model.xml")
    manifest = (package / "manifest.json").rename(tmp_path / "manifest.json")
    (package / "manifest.json").symlink_to(manifest)
    refused(package, "manifest.json is a link")
    (package / "manifest.json").unlink()
    manifest.rename(package / "manifest.json")
    (package / "engine").rename(tmp_path / "elsewhere")
    (package / "engine").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    refused(package, "is a link")


def test_an_edited_manifest_is_refused(logged: Logged, tmp_path: Path) -> None:
    package = logged.copy("openvino", tmp_path / "package")
    edit(package, lambda manifest: manifest["spec"]["target"].update(precision="bf16"), believed=False)
    refused(package, "manifest.json has changed")


def test_a_manifest_that_is_edited_with_its_digest_passes_only_where_nobody_else_knows_it(
    logged: Logged, tmp_path: Path
) -> None:
    """What digests beside the files cannot protect from, and what the tag on the server does."""
    package = logged.copy("openvino", tmp_path / "package")
    before = open_package(package).digest
    probe = package / "engine" / PROBE
    probe.write_bytes((logged.packages["onnxruntime"] / "engine" / PROBE).read_bytes() + b"\0")

    def believe(manifest: dict[str, Any]) -> None:
        manifest["files"][f"engine/{PROBE}"] = sha256(probe)
        size = sum(path.stat().st_size for path in (package / "engine").rglob("*") if path.is_file())
        manifest["size_bytes"] = size

    edit(package, believe, believed=True)
    open_package(package)
    with pytest.raises(EngineError, match="is not the manifest that was logged"):
        open_package(package, before)


@pytest.mark.parametrize(
    "path",
    ["../out", "/etc/passwd", "engine/../../out", "engine//x", "./engine/x", "engine\\x", "", "manifest.json", "a\0b"],
)
def test_no_path_leads_out_of_a_package(logged: Logged, tmp_path: Path, path: str) -> None:
    package = logged.copy("openvino", tmp_path / "package")
    edit(package, lambda manifest: manifest["files"].update({path: "0" * 64}), believed=True)
    assert "leads out of the package" in refused(package, "manifest.json")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"files": {"engine/x": "abc"}}, "has no sha256"),
        ({"files": {"MLmodel": "0" * 64}}, "no file in 'engine'"),
        ({"unknown": 1}, "unknown"),
        ({"spec": None}, "spec"),
        ({"compiled": {}}, "compiled.key"),
        ({"files": {f"engine/{'x' * 5000}": "0" * 64}}, "a name of 5007 characters, which no disk takes"),
    ],
)
def test_what_is_no_manifest_is_refused_with_the_key(
    logged: Logged, tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    package = logged.copy("openvino", tmp_path / "package")
    edit(package, lambda manifest: manifest.update(change), believed=True)
    assert said in refused(package, "manifest.json is not readable")


@pytest.mark.parametrize(("change", "reader"), [(1, "a newer one"), (-1, "an older one")])
def test_a_manifest_of_another_format_names_what_reads_it(
    logged: Logged, tmp_path: Path, change: int, reader: str
) -> None:
    package = logged.copy("openvino", tmp_path / "package")
    version = SCHEMA_VERSION + change
    edit(package, lambda manifest: manifest.update({"schema_version": version}), believed=True)
    assert f"{reader} may read it" in refused(package, f"manifest.json has format {version}")


@pytest.mark.parametrize(
    ("written", "instead", "said"),
    [
        (f'"batch_sizes": {json.dumps(list(BATCHES))}', '"batch_sizes": [0]', "spec.batch_sizes"),
        (f'"batch_sizes": {json.dumps(list(BATCHES))}', '"batch_sizes": []', "spec.batch_sizes"),
        (
            '"schema_version": 2',
            '"schema_version": 2, "schema_version": 2',
            "the key 'schema_version' stands in it twice",
        ),
        ('"schema_version": 2', f'"schema_version": {"[" * 100_000}', "nested too deeply"),
    ],
)
def test_what_readers_would_not_agree_on_is_refused(
    logged: Logged, tmp_path: Path, written: str, instead: str, said: str
) -> None:
    package = logged.copy("openvino", tmp_path / "package")
    path = package / "manifest.json"
    content = json.dumps(json.loads(path.read_text()))
    assert written in content
    path.write_text(content.replace(written, instead))
    (package / DIGEST_FILE).write_text(digest_line(sha256(path)))
    assert said in refused(package, "manifest.json is not readable")


def test_a_manifest_of_another_kind_is_refused(logged: Logged, tmp_path: Path) -> None:
    package = logged.copy("openvino", tmp_path / "package")
    (package / "manifest.json").write_bytes(b"\xff\xfe{}")
    (package / DIGEST_FILE).write_text(digest_line(sha256(package / "manifest.json")))
    refused(package, "manifest.json is not readable")
    with pytest.raises(EngineError, match="no manifest: it has"):
        Manifest.parse(b" " * (17 << 20), "it")


def test_a_probe_that_would_have_to_be_unpickled_is_refused(tmp_path: Path) -> None:
    import numpy as np

    np.savez(tmp_path / PROBE, input_0=np.array([{}], dtype=object), output_0=np.zeros(1))
    with pytest.raises(EngineError, match="no array of numbers"):
        read_probe(tmp_path)
    (tmp_path / PROBE).write_bytes(b"PK")
    with pytest.raises(EngineError, match="is not the probe of an engine"):
        read_probe(tmp_path)


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("content", [b"\x80\x04N.", npy_of(2**50, 64), npy_of(-1, 64), npy_of(2**18, 2**20)])
def test_a_probe_that_unfolds_or_lies_about_its_size_is_refused(
    content: bytes, compression: int, tmp_path: Path
) -> None:
    with zipfile.ZipFile(tmp_path / PROBE, "w", compression) as archive:
        archive.writestr("input_0.npy", content)
        archive.writestr("output_0.npy", npy_of(1, 4))
    if compression == zipfile.ZIP_STORED and content == npy_of(2**18, 2**20):
        assert read_probe(tmp_path).inputs[0].size == 2**18
        return
    with pytest.raises(EngineError, match="is not the probe of an engine") as error:
        read_probe(tmp_path)
    assert "\n" not in str(error.value)


def test_a_probe_without_numbers_proves_nothing(tmp_path: Path) -> None:
    import numpy as np

    one, nothing = np.ones((1, 2), np.float32), np.full((1, 2), np.nan, np.float32)
    for given, expected in ((one, nothing), (nothing, one)):
        np.savez(tmp_path / PROBE, input_0=given, output_0=expected)
        with pytest.raises(EngineError, match="an array without a finite number, which proves nothing"):
            read_probe(tmp_path)


def test_a_probe_of_another_engine_is_told(logged: Logged) -> None:
    package = open_package(logged.packages["openvino"])
    probe, spec = read_probe(package.engine), package.manifest.spec
    assert probe.misfit(spec) == ""
    assert probe.misfit(spec.model_copy(update={"outputs": spec.outputs * 2})) == "it has 1 output, and the engine 2"
    assert "its input 'input' has the shape (1, 10, 16)" in probe.misfit(spec.model_copy(update={"batch_sizes": (7,)}))


@pytest.mark.parametrize("name", ["manifest.json", DIGEST_FILE, "engine/spec.json"])
def test_what_is_no_file_is_waited_for_by_nobody(logged: Logged, tmp_path: Path, name: str) -> None:
    package = logged.copy("onnxruntime", tmp_path / "package")
    (package / name).unlink()
    os.mkfifo(package / name)
    refused(package, Path(name).name)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda content: content.update(size_bytes=content["size_bytes"] + 1),
            "bytes, and its manifest says",
        ),
        (lambda content: content.update(size_bytes="12"), "size_bytes"),
        (lambda content: content.pop("schema_version"), "has format None"),
        (lambda content: content["files"].update({"engine/a\nb": "0" * 64}), "leads out of the package"),
        (lambda content: content["files"].update({"engine/\u202egpj.so": "0" * 64}), "leads out of the package"),
        (lambda content: content["spec"]["inputs"][0].update(shape="many"), "shape"),
        (lambda content: content["spec"]["inputs"][0].update(shape=["x"]), "shape"),
        (lambda content: content["spec"]["inputs"][0].update(dtype="object"), "dtype"),
        (lambda content: content["spec"].update(batch_sizes=["1"]), "batch_sizes"),
        (lambda content: content["spec"]["target"].update(power="nuclear"), "target"),
        (lambda content: content["spec"]["target"].update(threads="2"), "threads"),
        (lambda content: content["spec"]["target"].update(threads=-5), "threads compute nothing"),
        (lambda content: content["spec"]["target"].update(mode="evil"), "target.mode"),
        (lambda content: content["spec"].update(batch_sizes=[1, 1]), "stands in it twice"),
        (lambda content: content["spec"].update(batch_sizes=list(range(1, 100_000))), "batch_sizes"),
        (lambda content: content["spec"].update(outputs=[]), "outputs"),
        (lambda content: content["spec"]["packages"].update({"--index-url": "1"}), "packages"),
        (lambda content: content["spec"].update(compiler="openvino"), "spec.json contradicts the manifest"),
        (lambda content: content["spec"].update(batch_sizes=[7]), "spec.json contradicts the manifest"),
        (lambda content: content["compiled"]["stages"].update(save=-1.0), "stages"),
    ],
)
def test_a_manifest_that_lies_is_refused_where_its_digest_fits(
    change: Callable[[dict[str, Any]], None], said: str, logged: Logged, tmp_path: Path
) -> None:
    package = logged.copy("onnxruntime", tmp_path / "package")
    edit(package, change, believed=True)
    assert "\n" not in refused(package, said)


@pytest.mark.parametrize("text", ['{"schema_version": ' + "9" * 5000, "[" + "[]," * 10**6 + "0]"])
def test_a_manifest_that_no_memory_or_number_holds_is_refused(text: str) -> None:
    with pytest.raises(EngineError, match="is not readable: "):
        Manifest.parse(text.encode(), "it")


def test_an_odd_name_of_a_file_is_no_order_to_a_terminal(logged: Logged, tmp_path: Path) -> None:
    package = logged.copy("onnxruntime", tmp_path / "package")
    (package / "engine" / "\x1b[2Jred\nblue").touch()
    assert "\x1b" not in (said := refused(package, "is not in the manifest"))
    assert "\n" not in said


def test_there_is_nothing_at_all(tmp_path: Path) -> None:
    for place in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(EngineError, match=place.name):
            load_model(place)
