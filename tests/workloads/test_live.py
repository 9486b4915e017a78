"""Modules that somebody holds in memory are workloads of a study, or are refused in one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from mlflow_ngraph import Live, Study, study
from mlflow_ngraph.errors import StudyError, WorkloadError
from mlflow_ngraph.workloads.base import Init
from mlflow_ngraph.workloads.materials import Source
from mlflow_ngraph.workloads.preparing import prepare
from mlflow_ngraph.workloads.registry import create
from tests.workloads.handed import Looks, Net

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("compilers")]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NGRAPH_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def made(kind: type[nn.Module], seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return kind()


def of(*workloads: Any) -> Study:
    return Study(workloads=list(workloads), compilers=["identity"], batch_sizes=[1, 3])


def prepared(found: Study, directory: Path, batch: int) -> Source:
    workload = create(found.workloads[0].parsed(), Init())
    prepare(workload, directory, batch_sizes=[batch], formats=["module"], seed=0)
    return Source(directory)


def unknown_elsewhere(kind: type[nn.Module]) -> type[nn.Module]:
    """As a class that is defined in a notebook."""
    return type(kind.__name__, (kind,), {"__module__": "__main__"})


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.drop = nn.Linear(4, 3), nn.Dropout()

    def forward(self, values: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": self.drop(self.linear(values))}


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 4)

    def forward(self, ids: torch.Tensor, *, mask: torch.Tensor) -> torch.Tensor:
        return (self.table(ids) * mask[..., None]).sum(1)


class Counting(nn.Module):
    """Its first call has the count one."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        self.count += 1
        values += self.count
        return values


class InFours(nn.Module):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values.reshape(4, -1)


def test_a_module_of_a_notebook_is_written_for_any_batch_size(tmp_path: Path) -> None:
    module = made(unknown_elsewhere(Dropping))
    found = of(Live(module, torch.ones(1, 4), name="mine"))
    assert module.training, "the user's module stays as it is"
    assert found.workloads[0].options == {"label": "mine"}
    source = prepared(found, tmp_path / "materials", 3)
    with torch.no_grad():
        expected = module.eval()(torch.tensor(source.example(3)[0]))["logits"]
    np.testing.assert_allclose(source.reference(3)[0], expected.numpy(), rtol=1e-5)
    assert study.parse(found.model_dump(mode="json")) == found


def test_equal_modules_are_the_equal_workload_and_others_are_not(home: Path) -> None:
    first, again, other = (of(Live(made(Dropping, seed), torch.ones(2, 4))) for seed in (0, 0, 1))
    assert first.digest() == again.digest() != other.digest()
    assert len(list((home / "modules").iterdir())) == 2


def test_what_calls_have_written_is_not_written_out() -> None:
    given = torch.ones(2, 4)
    found = of(Live(made(Counting), given))
    program = torch.export.load(found.workloads[0].ref.removeprefix("pt2:"))
    assert program.state_dict["count"] == 0
    assert (given == 1).all()


def test_example_integers_are_what_the_model_is_run_on(tmp_path: Path) -> None:
    ids = torch.tensor([[3, 49], [0, 7]])
    found = of(Live(made(Masked), {"ids": ids, "mask": torch.ones(2, 2)}))
    source = prepared(found, tmp_path / "materials", 3)
    assert [spec.name for spec in source.inputs] == ["ids", "mask"]
    np.testing.assert_array_equal(source.example(3)[0], ids[[0, 1, 0]])


def test_what_is_no_program_is_written_as_a_pickle(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = of(Live(Looks(), torch.ones(2, 4), name="mine"))
    assert "workload mine is written as a pickle: torch.export: " in caplog.text
    assert prepared(found, tmp_path / "materials", 3).materials.behaviour.reads
    assert found.digest() == of(Live(Looks(), np.ones((2, 4), np.float32), name="mine")).digest()


def test_a_pickle_of_a_class_that_was_changed_since_its_import_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Looks, "forward", lambda self, values: 2 * values if values.sum() > 0 else -values)
    with pytest.raises(
        WorkloadError, match="another process computes something else with it, because code was changed"
    ):
        of(Live(Looks(), torch.ones(2, 4)))


def test_what_is_a_program_for_one_batch_size_alone_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = of(Live(unknown_elsewhere(InFours)(), torch.ones(4, 6)))
    assert "is written for the batch size of its example only: torch.export: " in caplog.text
    assert prepared(found, tmp_path / "materials", 4).info.fixed_batch == 4


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        (
            Live(unknown_elsewhere(Looks)(), torch.ones(2, 3)),
            "put it into a file, such as models.py, and import it from there",
        ),
        (Live(nn.LazyLinear(3), torch.ones(2, 4)), "has parameters without a shape yet: call it once"),
        (Live(nn.Linear(4, 3, device="meta"), torch.ones(2, 4)), "is on the device meta, and has no numbers: load its"),
        (Live(torch.jit.script(nn.Linear(4, 3)), torch.ones(2, 4)), "hand over the module that it was made from"),
        (Live(Net, torch.ones(2, 4)), "workload type: type is no torch.nn.Module: hand over the module itself"),
        (Live(Net(), None), "its inputs are tensors or NumPy arrays, found NoneType: write Live(module, inputs)"),
        (Live(Net(), torch.ones(2, 5)), "workload Net does not run on its example inputs: "),
        (Live(Net(), torch.ones(2, 4), batch_axis=2), "no input has an axis 2: name the axis of the batch"),
        (Net(), "workloads.0: Net is a module without inputs: write Live(module, inputs) with example inputs"),
    ],
)
def test_what_cannot_be_written_is_refused_in_one_line(
    workload: Any, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises((StudyError, WorkloadError)) as caught:
        of(workload)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not [record for record in caplog.records if record.name.startswith("mlflow_ngraph")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"workloads": "a"}, "workloads: expected a list, found 'a'"),
        ({"workloads": [1]}, "workloads.0: expected a mapping of keys, found 1"),
        ({"batch_sizes": [1.5]}, "batch_sizes.0: expected a whole number, found 1.5"),
        ({"batchsizes": [1]}, "batchsizes: unknown key: did you mean 'batch_sizes'?"),
        ({"limits": 3}, "limits: expected a mapping of keys, found 3"),
    ],
)
def test_a_study_in_python_is_refused_as_plainly_as_a_file(content: dict[str, Any], message: str) -> None:
    whole = {"workloads": ["resnet18"], "compilers": ["identity"], "batch_sizes": [1], **content}
    with pytest.raises(StudyError) as caught:
        Study(**whole)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


SCRIPT = """
import torch
from torch import nn
from mlflow_ngraph import Live, Study, run_study

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, values):
        return torch.relu(self.linear(values))

if __name__ == "__main__":
    study = Study(
        workloads=[Live(Net(), torch.ones(2, 4), name="mine")], compilers=["torchscript"], batch_sizes=[1, 3],
        repetitions=2, warmup={"max_seconds": 0.1}, threads=1, limits={"reload_seconds": 0},
    )
    for lane in run_study(study, offline=True).record.lanes.values():
        print(lane.lane.label, *(cell.verdict.value for cell in lane.cells.values()))
"""


@pytest.mark.long
@pytest.mark.usefixtures("processes")
def test_a_script_measures_the_module_that_it_defines(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "mine.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["mine", "ok", "ok"] * 2, done.stderr
