"""What the verification says of modules of which the truth is known, and of engines that are wrong on purpose.

A small part of the zoo: ``python benchmarks/zoo.py`` and ``python benchmarks/broken_engines.py`` have all of it, in
real studies.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from mlflow_ngraph_testing.models import INPUTS
from mlflow_ngraph_testing.steps import within
from tests.support.zoo.quick import Verdicts, verdicts

pytestmark = pytest.mark.long

SECONDS = 900.0
COMPILERS = ("identity", "torchscript", "onnxruntime")
TELLING = {
    "branches": ("CommonBranch", "RareBranch", "FloatScale", "HookBranch", "WhereBranch"),
    "magic": ("MagicValue", "MagicShape", "MagicThread"),
    "loops": ("CountedLoop",),
    "state": ("CounterGlobal", "LateCounter", "FirstAnswer", "LazyTable"),
    "chance": ("RareNoise", "DeadDropout"),
    "samples": ("BatchSoftmax",),
    "numbers": ("FarStep", "TwoScales"),
    "structures": ("ListOutput", "Constant", "ChangesInput", "IgnoresSecond"),
}
DAMAGES = ("number", "weight", "swapped", "dropped", "repeated", "rounded", "clipped")
NETS = ("cnn", "parallel")
DETECTOR = "Detector"
"""Has scores below one beside boxes in pixels."""
BATCH = 3


def _said_of_the_zoo(directory: Path) -> Verdicts:
    from tests.support.zoo.catalogue import specimens

    chosen = {name: specimens()[name] for names in TELLING.values() for name in names}
    workloads = {name: {"target": one.target, "inputs": one.inputs} for name, one in chosen.items()}
    return verdicts(workloads, [(name, {}) for name in COMPILERS], [BATCH], directory)


def _said_of_the_broken(directory: Path) -> Verdicts:
    workloads = {name: {"target": f"mlflow_ngraph_testing.models:{name}", "inputs": INPUTS[name]} for name in NETS}
    workloads[DETECTOR] = {"target": f"tests.support.zoo.numbers:{DETECTOR}", "inputs": [{"shape": ["batch", 8]}]}
    return verdicts(workloads, [("broken", {"damage": damage}) for damage in DAMAGES], [BATCH], directory)


@pytest.fixture(scope="module")
def zoo(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Verdicts:
    return within(SECONDS, _said_of_the_zoo, tmp_path_factory.mktemp("zoo"))


@pytest.fixture(scope="module")
def broken(processes: None, broken_compiler: None, tmp_path_factory: pytest.TempPathFactory) -> Verdicts:
    return within(SECONDS, _said_of_the_broken, tmp_path_factory.mktemp("broken"))


@pytest.mark.usefixtures("compilers")
@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("name", [name for names in TELLING.values() for name in names])
def test_a_verdict_is_among_those_that_are_right(zoo: Verdicts, name: str, compiler: str) -> None:
    from tests.support.zoo.catalogue import specimens
    from tests.support.zoo.specimen import KINDS

    verdict, reason = zoo[name, COMPILERS.index(compiler), BATCH]
    assert verdict in specimens()[name].verdicts[KINDS[compiler]], reason


@pytest.mark.usefixtures("compilers")
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("net", NETS)
def test_a_damaged_engine_is_found(broken: Verdicts, net: str, damage: str) -> None:
    verdict, reason = broken[net, DAMAGES.index(damage), BATCH]
    assert verdict == "parity_failed", reason


@pytest.mark.usefixtures("compilers")
@pytest.mark.parametrize("damage", ["number", "weight"])
def test_damage_to_small_elements_does_not_hide_behind_large_ones(broken: Verdicts, damage: str) -> None:
    verdict, reason = broken[DETECTOR, DAMAGES.index(damage), BATCH]
    assert verdict == "parity_failed", reason
    assert "relative error" in reason
