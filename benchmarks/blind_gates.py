"""What a gate says where the truth is known: of equal engines, and of an engine that became 5 % slower.

``python benchmarks/blind_gates.py [--equal 200] [--slower 100]`` draws pairs of studies of two models, eager execution and one
compiler, at two batch sizes, on machines from quiet to very restless, derives their figures with the package's own code, and
asks the gate at its defaults (3 % of the speed-up) and at 3 % of the throughput. In every other pair the machine is restless: slices
are slow now and then, what slows both lanes outlives a round, and a study knows it.

Exit code 1 if more than 2 % of the equal pairs fail; if fewer than 95 % of the slower engines fail or "could not tell"; or if a
comparison passes that could not have noticed a change of the size of the threshold.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator

import numpy as np
from interval_coverage import alike, bursts
from support import records
from support.drawn_study import Durations, derived

from mlflow_ngraph.analysis.described import Described
from mlflow_ngraph.tables import results
from mlflow_ngraph_changes.gate import Side, Threshold, gate

ROUNDS, REPETITIONS, BATCHES, MODELS = 20, 10, (1, 8), ("one", "other")
LEVEL_NS = {"identity": 1e7, "fast": 4e6}
SLOWER, ALLOWED = 0.95, 0.03
PLANTED = "one", "fast", 8
SCATTER = {"quiet": (0.002, 0.02), "restless": (0.01, 0.2)}
"""From the least to the largest standard deviation of a lane's rounds, drawn on a logarithmic scale."""
MOST_RED, LEAST_SEEN = 0.02, 0.95


def main() -> int:
    """Count, print, and fail where a gate is wrong too often."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--equal", type=int, default=200)
    parser.add_argument("--slower", type=int, default=100)
    records.add_option(parser)
    asked = parser.parse_args()
    failed, figures = False, []
    for metric in ("speedup", "throughput"):
        for speed, pairs in ((1.0, asked.equal), (SLOWER, asked.slower)):
            counts = {machine: Counter[str]() for machine in SCATTER}
            blind = 0
            for number in range(pairs):
                machine = list(SCATTER)[number % 2]
                judged = gate(*_sides(machine, speed, number), [Threshold(metric, -ALLOWED)])
                green = judged.table[judged.table["outcome"] == "passed"]
                blind += int((green["notices"] > ALLOWED).sum())
                counts[machine][_outcome(judged, speed)] += 1
            whole = counts["quiet"] + counts["restless"]
            print(f"{metric}, {'equal' if speed == 1 else '5 % slower'}: " + "; ".join(_said(counts)), flush=True)
            print(f"  passed while blind: {blind}")
            red, seen = whole["failed"] / pairs, 1 - whole["passed"] / pairs
            share = (
                records.at_most(f"equal pairs that fail, by {metric}", 100 * red, 100 * MOST_RED, "%", digits=1)
                if speed == 1
                else records.at_least(
                    f"slower engines noticed, by {metric}", 100 * seen, 100 * LEAST_SEEN, "%", digits=1
                )
            )
            figures += [share, records.at_most("passed while blind", blind, 0, f"of {pairs}")]
            failed |= bool(blind) or (red > MOST_RED if speed == 1 else seen < LEAST_SEEN)
    records.keep(asked, "blind_gates", *figures)
    return int(failed)


def _outcome(judged: Described, speed: float) -> str:
    """Of equal studies what the gate says; of a slower engine what it says of this one."""
    if speed == 1:
        return str(judged.about["outcome"])
    workload, compiler, batch = PLANTED
    table = judged.table
    own = (table["label"] == workload) & (table["compiler_label"] == compiler) & (table["batch"] == batch)
    return str(table.loc[own, "outcome"].iloc[0])


def _said(counts: dict[str, Counter[str]]) -> Iterator[str]:
    for machine, outcomes in counts.items():
        yield f"{machine}: " + ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))


def _sides(machine: str, speed: float, seed: int) -> tuple[Side, Side]:
    """Candidate and baseline, each measured by itself on the same machine."""
    rng = np.random.default_rng([seed, int(speed < 1)])
    scatter = float(np.exp(rng.uniform(*np.log(SCATTER[machine]))))
    old, new = (_study(name, machine, scatter, by, rng) for name, by in (("old", 1.0), ("new", speed)))
    return new, old


def _study(name: str, machine: str, scatter: float, speed: float, rng: np.random.Generator) -> Side:
    drawn: dict[tuple[str, str, int], Durations] = {}
    for model in MODELS:
        for batch in BATCHES:
            shared = scatter * rng.standard_normal(ROUNDS)
            logs = shared + scatter * rng.standard_normal((len(LEVEL_NS), ROUNDS))
            if machine == "restless":
                logs += bursts(rng, ROUNDS) + alike(rng, ROUNDS)
            for (compiler, level), own in zip(LEVEL_NS.items(), logs, strict=True):
                planted = speed if (model, compiler, batch) == PLANTED else 1.0
                noise = 0.02 * rng.standard_normal((ROUNDS, REPETITIONS))
                drawn[model, compiler, batch] = level * batch / planted * np.exp(own[:, None] + noise)
    restless = "others used 40 % of the machine" if machine == "restless" else ""
    record = derived(drawn, name, float(name == "new"), restless)
    return Side(name, results.from_record(record))


if __name__ == "__main__":
    raise SystemExit(main())
