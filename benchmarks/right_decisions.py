"""Does a study that is to decide name the right compiler, on this host as it is and beside a load that comes in bursts?

``python benchmarks/right_decisions.py [--studies 20] [--loaded 12] [--reference-repetitions 300] [--workloads REF,...]
[--compilers NAME,...] [--batch-size 1] [--keep DIRECTORY]``

First a long study with paired rounds says which compiler is how fast, relative to eager execution, on each workload. Then
workloads are decided one study after the other: one on the host as it is, the next beside another process that keeps a
processor busy a third of the time, in bursts of 0.1 to 3 s. Last come studies beside a load that takes half of the
processors all the time. An answer is *right* if the reference has nothing that is more than 3 %
faster than what it names. One that says *undecided* names candidates: of these the slowest counts. With ``--keep`` the
reference and the studies stay in a directory; another call judges them again, and adds what is missing.
Exit code 1: as it is or beside bursts more than one in twenty studies was wrong, or any was more than 10 % off; or an
answer beside half of the processors was more than 5 % off.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from support import records
from support.load import bursts, steady
from support.records import Result

from mlflow_ngraph.analysis.recommend import recommend
from mlflow_ngraph.execute import replay, study_directories
from mlflow_ngraph.execute.record import StudyRecord
from mlflow_ngraph.runner import run_study
from mlflow_ngraph.study import parse
from mlflow_ngraph.tables import results

WORKLOADS = "timm:resnet18,timm:mobilenetv3_small_100,timm:deit_tiny_patch16_224"
COMPILERS = "identity,torchscript,torch-compile,onnxruntime,openvino"
RIGHT, OFF, LOADED_OFF = 1.03, 1.10, 1.05
WRONG_SHARE = 0.05
MAY_BE_UNDECIDED = 2
SHORTEST_S, LONGEST_S, SHARE = 0.1, 3.0, 1 / 3
CONDITIONS = ("as it is", "beside bursts")
LOADED = "beside half of the processors"


@dataclass(frozen=True)
class Decision:
    """How one study ended."""

    condition: str
    workload: str
    decided: bool
    named: tuple[str, ...]
    """The answer, or the candidates of an undecided study, by compiler."""
    timed_s: float
    departed: int
    """Cells that left the race."""


def main() -> int:
    """Measure the reference, decide again and again, and count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=20, help="under each of the two conditions")
    parser.add_argument("--loaded", type=int, default=12, help="beside half of the processors")
    parser.add_argument("--reference-repetitions", type=int, default=300)
    parser.add_argument("--workloads", default=WORKLOADS)
    parser.add_argument("--compilers", default=COMPILERS)
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="a directory in which everything stays")
    records.add_option(parser)
    options = parser.parse_args()
    asked = {"compilers": options.compilers.split(","), "batch_sizes": [options.batch_size]}
    workloads = options.workloads.split(",")
    place = nullcontext(str(options.keep)) if options.keep else tempfile.TemporaryDirectory()
    with place as home:
        kept = Path(home, "decisions.jsonl")
        long = {"name": "reference", "repetitions": options.reference_repetitions, "limits": {"cell_seconds": 600}}
        found = [path for path in Path(home).glob("studies/reference-*") if study_directories.end(path) != "open"]
        if not found:
            longest = parse({**asked, **long, "workloads": workloads})
            found = [run_study(longest, home=Path(home), offline=True).directory]
        reference = replay.load(found[-1])
        truth = {workload: speedups(reference, workload) for workload in workloads}
        for workload in workloads:
            print(f"reference: {workload}: {_figures(truth[workload])}", flush=True)
        decisions = [_judged(Path(home), **json.loads(line)) for line in _lines(kept)]
        asked_for = [CONDITIONS[number % 2] for number in range(2 * options.studies)] + [LOADED] * options.loaded
        for number, condition in list(enumerate(asked_for))[len(decisions) :]:
            workload = workloads[number // 2 % len(workloads)]
            study = _measure(asked, condition, workload, Path(home))
            with kept.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps({"condition": condition, "workload": workload, "study": study}) + "\n")
            decision = _judged(Path(home), condition, workload, study)
            decisions.append(decision)
            print(f"{number + 1}: {_told(decision, truth)}", flush=True)
    missed = [_missed(condition, decisions, truth) for condition in CONDITIONS]
    loaded = [decision for decision in decisions if decision.condition == LOADED]
    beside = [behind(decision, truth) for decision in loaded if decision.decided]
    print(f"{LOADED}: {len(loaded)} studies; {len(beside)} answers, the worst {_off(beside)} off")
    unloaded = [decision for decision in decisions if decision.condition != LOADED]
    answers = [behind(decision, truth) for decision in unloaded if decision.decided]
    doubts = [behind(decision, truth) for decision in unloaded if not decision.decided]
    right = sum(times <= RIGHT for times in answers)
    records.keep(
        options,
        "right_decisions",
        records.at_least("answers at most 3 % behind the best", right, len(answers), f"of {len(answers)}"),
        records.at_most("furthest behind the best", 100 * (max(answers) - 1), 100 * (OFF - 1), "%", digits=1),
        records.at_most("undecided", len(doubts), MAY_BE_UNDECIDED, f"of {len(unloaded)}"),
        Result(
            name="furthest candidate of an undecided one", value=round(100 * (max(doubts, default=1) - 1), 1), unit="%"
        ),
        Result(name="timed by a study", value=round(sum(one.timed_s for one in unloaded) / len(unloaded), 1), unit="s"),
        records.at_most(
            f"answers {LOADED} that are more than 5 % off",
            sum(times > LOADED_OFF for times in beside),
            0,
            f"of {len(beside)}",
        ),
        Result(name=f"undecided {LOADED}", value=len(loaded) - len(beside), unit=f"of {len(loaded)}"),
    )
    return int(any(missed) or any(times > LOADED_OFF for times in beside))


def speedups(record: StudyRecord, workload: str) -> dict[str, float]:
    """The speed-up of each compiler on a workload."""
    return {
        lane.lane.compiler_label: cell.metrics["speedup"]
        for lane in record.lanes.values()
        if lane.lane.workload == workload
        for cell in lane.cells.values()
        if "speedup" in cell.metrics
    }


def _measure(asked: Mapping[str, object], condition: str, workload: str, home: Path) -> str:
    """Run a study that decides; returns its id."""
    study = parse({**asked, "name": "decision", "workloads": [workload], "purpose": "decide"})
    with _load(condition):
        return run_study(study, home=home, offline=True, resume="never").directory.name


def _judged(home: Path, condition: str, workload: str, study: str) -> Decision:
    record = replay.load(home / "studies" / study)
    table, about = recommend(results.from_record(record), objective="throughput")
    best = table[table["best"]]["compiler_label"].tolist()
    leading = table[table["rank"] == 1]["compiler_label"].tolist()
    rivals = [rival["row"]["compiler_label"] for doubt in about["undecided"] for rival in doubt["rivals"]]
    cells = [cell for lane in record.lanes.values() for cell in lane.cells.values()]
    timed = sum(part["wall_s"] for cell in cells for part in cell.samples)
    departed = sum(bool(cell.left) for cell in cells)
    return Decision(condition, workload, bool(best), tuple(best or dict.fromkeys(leading + rivals)), timed, departed)


def _load(condition: str) -> AbstractContextManager[object]:
    if condition == LOADED:
        return steady((os.cpu_count() or 2) // 2)
    return bursts(SHORTEST_S, LONGEST_S, SHARE) if condition == CONDITIONS[1] else nullcontext()


def behind(decision: Decision, truth: Mapping[str, Mapping[str, float]]) -> float:
    """How many times faster the best is than the slowest that a study named; infinite where it named nothing."""
    known = truth[decision.workload]
    return max((max(known.values()) / known[name] for name in decision.named), default=float("inf"))


def _missed(condition: str, decisions: Sequence[Decision], truth: Mapping[str, Mapping[str, float]]) -> bool:
    made = [decision for decision in decisions if decision.condition == condition]
    answers = [behind(decision, truth) for decision in made if decision.decided]
    doubts = [behind(decision, truth) for decision in made if not decision.decided]
    wrong = sum(times > RIGHT for times in answers + doubts)
    print(
        f"{condition}: {len(made)} studies; {len(answers)} answers, of which {sum(times <= RIGHT for times in answers)} right, "
        f"the worst {_off(answers)} off; {len(doubts)} undecided, of which {sum(times <= RIGHT for times in doubts)} named nothing "
        f"slower than that, the worst {_off(doubts)} off; {sum(decision.timed_s for decision in made) / len(made):.1f} s timed each"
    )
    return wrong > WRONG_SHARE * len(made) or any(times > OFF for times in answers + doubts)


def _off(times: Sequence[float]) -> str:
    return f"{100 * (max(times) - 1):.1f} %" if times else "-"


def _told(decision: Decision, truth: Mapping[str, Mapping[str, float]]) -> str:
    word = "answer" if decision.decided else "undecided between"
    return (
        f"{decision.condition}, {decision.workload}: {word} {', '.join(decision.named)}, {_off([behind(decision, truth)])} off, "
        f"{decision.timed_s:.1f} s timed, {decision.departed} left"
    )


def _figures(known: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {known[name]:.3f}" for name in sorted(known, key=known.__getitem__, reverse=True))


def _lines(kept: Path) -> list[str]:
    return kept.read_text(encoding="utf-8").splitlines() if kept.is_file() else []


if __name__ == "__main__":
    raise SystemExit(main())
