"""Contract suite for every installed compiler, each in a process of its own.

The short form has no time for all of it, so it asks every compiler first for the least that there is to see: an engine,
reloaded, that computes its model. The whole suite of one after the other then has what is left.
"""

from __future__ import annotations

import importlib.util
import json
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlflow_ngraph.processes import python_command
from mlflow_ngraph.tables.sheet import Sheet
from mlflow_ngraph_testing.first_contact.bench import BASELINE, Bench
from mlflow_ngraph_testing.first_contact.command import GRACE_SECONDS, CommandResult
from mlflow_ngraph_testing.first_contact.finding import Finding, Status, worst

RESULTS, PROVEN = "results.jsonl", "proven.jsonl"
LEFT_OUT = ("test_flags_make_the_round_trip", "test_other_values_of_flags_give_the_same_function")
"""Tests that need another value of every flag, which only the author of an adapter can name."""
PROOF = "test_a_reloaded_engine_computes_the_models_function"
"""The least that the short form has to see of a compiler."""
_PROVEN_WITH = {"models": ("cnn",)}
_SHORT = {"models": ("cnn", "text_encoder"), "cycles": 40}
"""Values of the short form."""

_MODULE = '''
"""Written by mlflow-ngraph local first-contact."""

from mlflow_ngraph_testing.contract import CompilerContract


class TestContract(CompilerContract):
{attributes}

    @classmethod
    def _job(cls, flags=None, **target):
        return super()._job(flags, **{{"accelerator": {accelerator!r}, **target}})
'''

# What a test came to is on disk before the next one begins: a suite that is cut off has told what it knew.
_PLUGIN = '''
"""Written by mlflow-ngraph local first-contact."""

import json
from pathlib import Path

FILE = Path({file!r})


def _write(**line):
    with FILE.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\\n")


def pytest_collection_finish(session):
    _write(collected=[item.name for item in session.items])


def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        name = report.nodeid.rpartition("::")[2]
        reason = report.longrepr[2] if report.skipped else "" if report.passed else report.longreprtext
        _write(test=name, outcome=report.outcome, reason=str(reason))
'''


def contract(bench: Bench, seconds: float) -> Finding:
    """Run the suite for one compiler after the other, each with a fair share of the time that is left.

    Results of an earlier run in the same folder are kept.
    """
    if not all(importlib.util.find_spec(name) for name in ("pytest", "torch")):
        lacking = " and ".join(name for name in ("pytest", "torch") if not importlib.util.find_spec(name))
        return Finding("lacking", f"the suite needs {lacking}: pip install {lacking}")
    deadline = time.monotonic() + seconds
    seen = {compiler: _CompilerResults(bench.folder / "contract" / compiler) for compiler in bench.compilers}
    for step in (_prove, _suite) if bench.form == "short" else (_suite,):
        for place, (compiler, so_far) in enumerate(seen.items()):
            step(bench, compiler, so_far, (deadline - time.monotonic()) / (len(seen) - place))
    rows, tables, facts, statuses = [], [], {}, []
    for compiler, found in seen.items():
        status, said, results = _judge(bench, found)
        statuses.append(status)
        rows.append([compiler, status, said, f"{found.seconds:.0f} s"])
        facts[compiler] = {"status": status, "seconds": found.seconds, **results}
        tables.append(Sheet(f"Contract of {compiler}", ("test", "outcome", "reason"), _rows(results)))
    counts = Counter(statuses)
    said = ", ".join(f"{number} {status}" for status, number in counts.items())
    left_out = f"left out, as only an adapter's author knows other values of its flags: {', '.join(LEFT_OUT)}"
    overview = Sheet("Contract suite", ("compiler", "result", "tests", "time"), rows)
    return Finding(worst(statuses), f"of {len(rows)} compilers {said}; {left_out}", [overview, *tables], facts)


@dataclass
class _CompilerResults:
    folder: Path
    ended: CommandResult = field(default_factory=lambda: CommandResult(None, "", "", 0.0))
    """Result of the suite or, before it has begun, of the proof."""
    seconds: float = 0.0

    def suite(self) -> dict[str, Any]:
        return outcomes(self.folder / RESULTS)

    def proof(self) -> dict[str, Any]:
        return outcomes(self.folder / PROVEN)


def _prove(bench: Bench, compiler: str, seen: _CompilerResults, seconds: float) -> None:
    """Have an engine of a compiler compute one small model."""
    if not (_complete(seen.suite()) or _complete(seen.proof())):
        _run(bench, compiler, seen, seconds, PROVEN, _PROVEN_WITH, "-k", f"{PROOF} and cnn")


def _suite(bench: Bench, compiler: str, seen: _CompilerResults, seconds: float) -> None:
    if _complete(seen.suite()):
        seen.ended = CommandResult(0, "", "", 0.0)
        return
    _run(bench, compiler, seen, seconds, RESULTS, _SHORT if bench.form == "short" else {})


def _run(
    bench: Bench,
    compiler: str,
    seen: _CompilerResults,
    seconds: float,
    file: str,
    values: Mapping[str, Any],
    *options: str,
) -> None:
    """Run some of the suite with some of its values, and have the outcome of each test written to a file."""
    if seconds < GRACE_SECONDS:
        return
    seen.folder.mkdir(parents=True, exist_ok=True)
    (seen.folder / file).unlink(missing_ok=True)
    attributes = {"compiler": compiler, "needs_model_code": compiler == BASELINE, **dict.fromkeys(LEFT_OUT), **values}
    lines = "\n".join(f"    {name} = {value!r}" for name, value in attributes.items())
    (seen.folder / "test_contract.py").write_text(
        _MODULE.format(attributes=lines, accelerator=bench.profile.accelerator), encoding="utf-8"
    )
    (seen.folder / "conftest.py").write_text(_PLUGIN.format(file=str(seen.folder / file)), encoding="utf-8")
    options = ("-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(seen.folder), *options)
    # Plugins of others would be tried here as well, and fail for reasons of their own.
    command = ["env", "PYTEST_DISABLE_PLUGIN_AUTOLOAD=1", *python_command.command("pytest", *options, str(seen.folder))]
    seen.ended = bench.run(f"contract-{compiler}-{file.partition('.')[0]}", command, seconds)
    seen.seconds += seen.ended.seconds


def outcomes(path: Path) -> dict[str, Any]:
    """Results of a suite from its file: ``collected``, the names of its tests, and ``outcomes`` of those that finished."""
    collected: list[str] = []
    by_test: dict[str, dict[str, str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        entry: Mapping[str, Any] = json.loads(line)
        if "collected" in entry:
            collected = list(entry["collected"])
        else:
            by_test[entry["test"]] = {"outcome": entry["outcome"], "reason": _first_error(entry["reason"])}
    return {"collected": collected, "outcomes": by_test}


def _complete(results: Mapping[str, Any]) -> bool:
    """Test if every test finished and none failed."""
    by_test = results["outcomes"]
    ended = results["collected"] and all(name in by_test for name in results["collected"])
    return bool(ended) and not any(test["outcome"] == "failed" for test in by_test.values())


def _judge(bench: Bench, seen: _CompilerResults) -> tuple[Status, str, dict[str, Any]]:
    """Status of a compiler's contract, a summary, and the results of proof and suite together."""
    ended, proof, suite = seen.ended, seen.proof(), seen.suite()
    by_test = {**proof["outcomes"], **suite["outcomes"]}
    collected = list(dict.fromkeys([*proof["collected"], *suite["collected"]]))
    results = {"collected": collected, "outcomes": by_test}
    begun = bool(suite["collected"])
    if not begun and (ended.code is not None or not collected):
        return ("incomplete" if ended.code is None else "wrong"), f"the suite {ended.how}", results
    counts = Counter(test["outcome"] for test in by_test.values())
    left = [name for name in collected if name not in by_test]
    said = ", ".join(f"{number} {outcome}" for outcome, number in sorted(counts.items())) or "none finished"
    if left:
        said += f", {len(left)} not reached"
    elif not begun:
        said += ", no time for the others"
    if counts["failed"]:
        return "wrong", said, results
    if left and ended.code is not None:
        return "wrong", f"{said}; the suite {ended.how}", results
    computes = any(name.startswith(PROOF) and test["outcome"] == "passed" for name, test in by_test.items())
    enough = _complete(suite) or (bench.form == "short" and computes)
    return ("right" if enough else "incomplete"), said, results


def _rows(results: Mapping[str, Any]) -> Sequence[Sequence[str]]:
    by_test = results["outcomes"]
    unreached = {"outcome": "not reached", "reason": ""}
    named = list(dict.fromkeys([*results["collected"], *by_test]))
    return [[name, *(by_test.get(name, unreached)[key] for key in ("outcome", "reason"))] for name in named]


def _first_error(text: str) -> str:
    """The first line of an error within pytest's report of a failure."""
    errors = re.findall(r"^E\s+(.+)$", text, re.MULTILINE)
    return " ".join((errors[0] if errors else text.removeprefix("Skipped: ")).split())[:300]
