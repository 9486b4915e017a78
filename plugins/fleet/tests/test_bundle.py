from __future__ import annotations

from pathlib import Path

import pytest

from mlflow_ngraph import study as studies
from mlflow_ngraph.errors import WorkloadError
from mlflow_ngraph_fleet.bundle import Travelling


def pack(tmp_path: Path, *workloads: object) -> Travelling:
    study = studies.parse({"workloads": list(workloads), "compilers": ["identity"], "batch_sizes": [1]})
    return Travelling.pack(study, tmp_path / "packed")


def files(travelling: Travelling) -> set[str]:
    return {
        str(path.relative_to(travelling.parts[name]))
        for name in travelling.models
        for path in travelling.parts[name].rglob("*")
        if path.is_file()
    }


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    (folder / "models").mkdir(parents=True)
    (folder / "models" / "net.onnx").write_bytes(b"graph with weights in net.data, as said")
    (folder / "models" / "net.data").write_bytes(b"weights")
    (folder / "models" / "other.bin").write_bytes(b"nobody names this")
    (folder / "mine.py").write_text("def net(): ...")
    monkeypatch.chdir(folder)
    return folder


def test_a_model_named_by_a_relative_path_keeps_its_name(project: Path, tmp_path: Path) -> None:
    packed = pack(tmp_path, "onnx:models/net.onnx?label=n")
    assert [choice.ref for choice in packed.study.workloads] == ["onnx:models/net.onnx?label=n"]
    assert files(packed) == {"models/net.onnx", "models/net.data"}


def test_a_model_named_by_a_full_path_travels_by_its_digest(project: Path, tmp_path: Path) -> None:
    packed = pack(tmp_path, f"onnx:{project}/models/net.onnx?label=n")
    (ref,) = (choice.parsed() for choice in packed.study.workloads)
    assert not Path(ref.target).is_absolute()
    assert ref.options == {"label": "n"}
    assert ref.target in files(packed)


def test_a_full_path_that_is_not_here_is_one_of_the_device(project: Path, tmp_path: Path) -> None:
    packed = pack(tmp_path, "onnx:/on/the/device/net.onnx")
    assert [choice.ref for choice in packed.study.workloads] == ["onnx:/on/the/device/net.onnx"]
    assert not packed.models


def test_a_relative_path_that_is_not_here_is_refused(project: Path, tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"no file models/none\.onnx"):
        pack(tmp_path, "onnx:models/none.onnx")


def test_a_module_of_the_users_own_travels(project: Path, tmp_path: Path) -> None:
    packed = pack(tmp_path, {"ref": "torch:mine:net", "options": {"inputs": [{"shape": ["batch", 3]}]}})
    assert files(packed) == {"mine.py"}


def test_equal_content_has_the_name_that_it_had(project: Path, tmp_path: Path) -> None:
    first = pack(tmp_path / "one", "onnx:models/net.onnx")
    second = pack(tmp_path / "two", "onnx:models/net.onnx")
    assert list(first.parts) == list(second.parts)
    (project / "models" / "net.data").write_bytes(b"other weights")
    assert pack(tmp_path / "three", "onnx:models/net.onnx").models != first.models
