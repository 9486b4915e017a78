"""The suite finds what it is there to find: a compiler that misbehaves fails the test that is meant for it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree as ET

import pytest

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("compilers")]

PARITY = "test_a_reloaded_engine_computes_the_models_function[cnn-3]"
OTHER_INPUTS = "test_it_does_so_for_other_inputs[cnn]"
LEAKS = "test_engines_leave_nothing_behind"
TIME_LIMIT = "test_a_time_limit_ends_a_compilation_and_all_that_it_started"
KILLED = "test_a_compilation_ends_with_the_process_that_asked_for_it"
HALF = "test_half_an_engine_is_not_taken_for_one"
AGAIN = "test_compiling_again_gives_an_engine_that_behaves_the_same"
RESUMED = "test_a_search_goes_on_after_it_was_cut"
UNSUPPORTED = "test_an_operator_that_nobody_knows_is_unsupported_by_its_name"
EXPLAIN = "test_explanations_make_sense_and_the_round_trip"


@dataclass(frozen=True)
class Case:
    """The flags of the fake compiler, and what the suite says to it."""

    flags: Mapping[str, Any]
    fails: tuple[str, ...] = ()
    passes: tuple[str, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)


SLOW = {"at": "compile", "delay_ms": 1500.0}
CASES = {
    "Good": Case({}, passes=(PARITY, LEAKS, EXPLAIN, UNSUPPORTED)),
    "Wrong": Case({"behaviour": "wrong"}, fails=(PARITY,)),
    "NaN": Case({"behaviour": "nan"}, fails=(PARITY,)),
    "Constant": Case(
        {"behaviour": "constant"}, fails=(OTHER_INPUTS,), passes=(PARITY,), attributes={"other_inputs": True}
    ),
    "LeakRun": Case({"behaviour": "leak", "at": "run"}, fails=(LEAKS,)),
    "LeakLoad": Case({"behaviour": "leak", "at": "load"}, fails=(LEAKS,)),
    "LeakThreads": Case({"behaviour": "leak_threads", "at": "load"}, fails=(LEAKS,)),
    "LeakStack": Case({"behaviour": "leak_stack", "at": "load"}, fails=(LEAKS,)),
    "Slow": Case({"behaviour": "slow", **SLOW}, passes=(TIME_LIMIT, HALF, AGAIN, KILLED)),
    "LeavesProcess": Case({"behaviour": "leave_process", **SLOW, "delay_ms": 2500.0}, fails=(TIME_LIMIT, KILLED)),
    "Searches": Case({"behaviour": "slow", "at": "search", "delay_ms": 100.0, "search_batches": 10}, passes=(RESUMED,)),
    "Hangs": Case({"behaviour": "hang", "at": "load"}, fails=(PARITY,), attributes={"step_seconds": 5.0}),
    "Crashes": Case({"behaviour": "crash", "at": "run"}, fails=(PARITY,)),
    "Raises": Case({"behaviour": "raise", "at": "compile"}, fails=(UNSUPPORTED,)),
    "ExplainsNothing": Case({"behaviour": "raise", "at": "explain"}, fails=(EXPLAIN,)),
}


def suite() -> str:
    lines = ["from mlflow_ngraph_testing.contract import CompilerContract", ""]
    for name, case in CASES.items():
        attributes = {
            "compiler": "fake",
            "flags": dict(case.flags),
            "models": ("cnn",),
            "other_inputs": False,
            "cycles": 40,
            **case.attributes,
        }
        lines += [
            f"class Test{name}(CompilerContract):",
            *(f"    {key} = {value!r}" for key, value in attributes.items()),
        ]
    return "\n".join(lines)


@pytest.fixture(scope="module")
def results(
    processes: None, fake_compiler: None, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[tuple[str, str], bool]:
    """Whether a test passed, by class and test."""
    directory = tmp_path_factory.mktemp("suite")
    module, report = directory / "test_suite.py", directory / "report.xml"
    module.write_text(suite())
    tests = [f"{module}::Test{name}::{test}" for name, case in CASES.items() for test in (*case.fails, *case.passes)]
    options = ["-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(directory), f"--junitxml={report}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests], capture_output=True, text=True, check=False
    )
    assert report.is_file(), done.stdout + done.stderr
    found = ET.parse(report).getroot().iter("testcase")
    return {
        (case.attrib["classname"].partition(".Test")[2], case.attrib["name"]): not any(
            case.find(kind) is not None for kind in ("failure", "error", "skipped")
        )
        for case in found
    }


@pytest.mark.usefixtures("compilers")
@pytest.mark.parametrize("name", CASES)
def test_the_suite_finds_it(results: Mapping[tuple[str, str], bool], name: str) -> None:
    case = CASES[name]
    expected = {**dict.fromkeys(case.fails, False), **dict.fromkeys(case.passes, True)}
    assert {test: results[name, test] for test in expected} == expected
