"""Parity of the paper's fifteen models on all installed compilers."""

from __future__ import annotations

from collections import Counter

from mlflow_ngraph import study as studies
from mlflow_ngraph.execute.plan import WorkloadPlan
from mlflow_ngraph.runner import plan_study
from mlflow_ngraph.study import Study
from mlflow_ngraph_testing.first_contact import cells
from mlflow_ngraph_testing.first_contact.bench import Bench
from mlflow_ngraph_testing.first_contact.finding import Finding

NAME = "paper-parity"
_PAPER = "paper-models"


def paper_models(bench: Bench, seconds: float) -> Finding:
    """Build and verify as many as fit into the time: first the smallest of each family, then the others."""
    whole = studies.load(_PAPER).model_dump(mode="json")
    path = bench.write_study(
        NAME,
        {
            **whole,
            "name": NAME,
            "device": bench.profile.name,
            "workloads": _smallest_first(studies.load(_PAPER, {"device": "host"})),
            # Without a search, which takes hours.
            "compilers": list(bench.compilers),
            "batch_sizes": [1],
            "repetitions": 3,
            "builds": "together",
            "warmup": {**whole["warmup"], "max_seconds": 1},
            "limits": {**whole["limits"], "cell_seconds": 5},
        },
    )
    ended = bench.run(NAME, bench.benchmark(path), seconds)
    record = bench.record(NAME)
    if record is None:
        return Finding("wrong" if ended.code is not None else "incomplete", f"the study {ended.how}")
    table = cells.table(record, "Parity on the models of the paper, batch 1, fp32")
    expected = Counter(lane.lane.label for lane in record.lanes.values())
    done = Counter(lane.lane.label for lane, _ in cells.cells(record))
    complete = [label for label in expected if done[label] == expected[label]]
    left = [label for label in expected if label not in complete]
    said = f"{len(complete)} of {len(expected)} models; {cells.counted(record)}"
    said += f"; not reached: {', '.join(left)}" if left else ""
    facts = {"exit_code": ended.code, "complete": complete, "left": left}
    if problems := cells.faults(record):
        return Finding("wrong", f"{said}; {'; '.join(problems)}", [table], facts)
    if ended.code not in (None, 0, 3):
        return Finding("wrong", f"{said}; the study {ended.how}", [table], facts)
    # In the short form as many as fit are all that is asked for.
    enough = not left or (bench.form == "short" and complete)
    return Finding("right" if enough else "incomplete", said, [table], facts)


def _smallest_first(study: Study) -> list[dict[str, object]]:
    """The workloads, family by family in turns, each from its smallest model."""

    def macs(plan: WorkloadPlan) -> int:
        return plan.known.true_macs or 0 if plan.known is not None else 0

    turns: Counter[str] = Counter()
    placed: list[tuple[int, int, dict[str, object]]] = []
    given = [workload.model_dump(mode="json") for workload in study.workloads]
    pairs = zip(plan_study(study).workloads, given, strict=True)
    for plan, workload in sorted(pairs, key=lambda pair: macs(pair[0])):
        placed.append((turns[plan.family], macs(plan), workload))
        turns[plan.family] += 1
    return [workload for _, _, workload in sorted(placed, key=lambda entry: entry[:2])]
