"""How often the intervals that are shown contain the truth, from three rounds to fifty, on quiet machines and restless ones.

``python benchmarks/interval_coverage.py [--trials 400]`` draws studies of two lanes with ten repetitions a round, derives
their figures with the package's own code, and counts for each number of rounds

- how often the interval of throughput, median latency and speed-up contains the truth. Wanted are at least 93 of 100, and what
  is below that by more than three standard errors of the count is an error. More than 97 is too wide, and none: nobody knows
  from a few rounds how much alike they are;
- how many have none, because it would be wider than a factor of ten. No interval that is shown may be wider, or reach
  zero;
- whether the order of the throughputs is that of the speed-ups wherever a speed-up is firm (its interval excludes 1).

The truth is what ever so many rounds of such a machine would give. Machines that are not quiet are known as such, as a study
knows them.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray
from support.drawn_study import derived

from mlflow_ngraph.estimates import WIDEST
from mlflow_ngraph.measure import statistics

Array = NDArray[np.float64]
ROUNDS = (3, 4, 6, 8, 12, 20, 50)
REPETITIONS, BATCH = 10, 8
SCATTER = 0.02
"""Standard deviation of the logarithms, of rounds of a lane as well as of repetitions."""
DURATION_NS = {"identity": 11.5e6, "fast": 10.0e6}
FIGURES = ("throughput", "latency_p50_ms", "speedup")
LEAST, MOST = 0.93, 0.97

Machine = Callable[[np.random.Generator, int], Array]
"""Draws what disturbs the rounds of both lanes, as logarithms; shape (2, rounds)."""


def quiet(rng: np.random.Generator, rounds: int) -> Array:
    """Nothing."""
    return np.zeros((2, rounds))


def bursts(rng: np.random.Generator, rounds: int) -> Array:
    """Every seventh slice is slower, by half on average and now and then by a factor."""
    return (rng.random((2, rounds)) < 0.15) * rng.exponential(0.5, (2, rounds))


def drift(rng: np.random.Generator, rounds: int) -> Array:
    """Both lanes become slower or faster all the time, by 15 % or so from the first round to the last."""
    return np.tile(np.linspace(-0.5, 0.5, rounds) * rng.normal(0, 0.15), (2, 1))


def alike(rng: np.random.Generator, rounds: int, correlation: float = 0.5) -> Array:
    """What slows both lanes outlives a round, half of it at least; 10 %."""
    shocks = 0.1 * rng.standard_normal(rounds)
    shocks[1:] *= np.sqrt(1 - correlation**2)
    for number in range(1, rounds):
        shocks[number] += correlation * shocks[number - 1]
    return np.tile(shocks, (2, 1))


def very_alike(rng: np.random.Generator, rounds: int) -> Array:
    """As `alike`, and four fifths of it outlive a round."""
    return alike(rng, rounds, 0.8)


MACHINES: tuple[Machine, ...] = (quiet, bursts, drift, alike, very_alike)


def main() -> int:
    """Count, print, and fail where an interval is too short, too wide or not positive, or an order is another one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=400)
    trials = parser.parse_args().trials
    failed = False
    for machine in MACHINES:
        print(f"{machine.__name__}: covered, without an interval [%]")
        print(f"{'rounds':>8}" + "".join(f"{name:>20}" for name in FIGURES) + f"{'other order':>22}")
        for rounds in ROUNDS:
            counts = Counter[str]()
            for seed in range(trials):
                counts.update(_trial(machine, rounds, np.random.default_rng([seed, rounds])))
            failed |= bool(counts["wrong"] or counts["other order"])
            line = f"{rounds:>8}"
            for name in FIGURES:
                shown = max(counts[f"{name} shown"], 1)
                share = counts[f"{name} covered"] / shown
                failed |= share < LEAST - 3 * float(np.sqrt(LEAST * (1 - LEAST) / shown))
                mark = "<" if share < LEAST else ">" if share > MOST else " "
                line += f"{100 * share:>13.1f} {mark}{100 * (1 - counts[f'{name} shown'] / trials):>5.1f}"
            print(f"{line}{counts['other order']:>12} of {counts['firm']:>6}", flush=True)
    return int(failed)


def _trial(machine: Machine, rounds: int, rng: np.random.Generator) -> Counter[str]:
    """What becomes of the intervals of one drawn study."""
    noise = "" if machine is quiet else "others used 40 % of the machine"
    record = derived(_drawn(machine, rounds, rng), noise=noise)
    fast, eager = (record.lanes[f"w-{name}"].cells[BATCH].metrics for name in ("fast", "identity"))
    found = Counter[str]()
    for name, truth in _truth(machine).items():
        if f"{name}_ci_low" not in fast:
            continue
        low, high = fast[f"{name}_ci_low"], fast[f"{name}_ci_high"]
        found.update({f"{name} shown": 1, f"{name} covered": int(low <= truth <= high)})
        found["wrong"] += not (low > 0 and high <= WIDEST * low * (1 + 1e-9))
    low, high = (fast.get(f"speedup_ci_{end}", 1.0) for end in ("low", "high"))
    if low > 1 or high < 1:
        found["firm"] += 1
        found["other order"] += (fast["throughput"] > eager["throughput"]) != (fast["speedup"] > 1)
    return found


def _drawn(machine: Machine, rounds: int, rng: np.random.Generator) -> dict[tuple[str, str, int], Array]:
    disturbed = machine(rng, rounds) + SCATTER * rng.standard_normal((2, rounds))
    logs = disturbed[..., None] + SCATTER * rng.standard_normal((2, rounds, REPETITIONS))
    levels = zip(DURATION_NS.items(), logs, strict=True)
    return {("w", name, BATCH): level * np.exp(own) for (name, level), own in levels}


@cache
def _truth(machine: Machine) -> dict[str, float]:
    """What ever so many rounds would give: of what is symmetric the level itself."""
    level = DURATION_NS["fast"] / 1e9
    typical = median = 1.0
    if machine is bursts:
        logs = bursts(np.random.default_rng(0), 400_000)[0] + SCATTER * np.random.default_rng(1).standard_normal(
            400_000
        )
        typical = float(statistics.trimmed_mean(logs).value)
        median = float(np.exp(np.median(logs + SCATTER * np.random.default_rng(2).standard_normal(logs.size))))
    return {
        "throughput": BATCH / level / typical,
        "latency_p50_ms": 1e3 * level * median,
        "speedup": DURATION_NS["identity"] / DURATION_NS["fast"],
    }


if __name__ == "__main__":
    raise SystemExit(main())
