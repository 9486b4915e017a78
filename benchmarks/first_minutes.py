"""What the first minutes with this package are like: ``make benchmark`` in a fresh clone, again, and where the time goes.

``python benchmarks/first_minutes.py [--times 10]`` clones the repository that it stands in, with empty caches of pip and an
empty home, and runs ``make benchmark`` there: from nothing, a second time, and so on. ``--no-make`` leaves out the
environment and runs the study itself, each time in an empty home. ``--from DIRECTORY...`` only reads what directories of
studies hold.

For each study it says how long it took, where that went, and what it answered. The last figure is the wall time over the least
that it could be: the seconds that were timed, and the CPU seconds of preparing, compiling and verifying spread over all
processors. Exit code 1: from nothing it took more than 9 minutes, the study more than 4 of them; a second time more than
90 s; a study had no answer; or of studies that compiled something the median of that figure is above 1.4.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from support.spans import covered

from mlflow_ngraph.analysis.closing import answers
from mlflow_ngraph.execute import journal, replay

ROOT = Path(__file__).parents[1]
FIRST_S, STUDY_S, AGAIN_S = 540, 240, 90
"""What ``make benchmark`` may take from nothing, its study within that, and all of it a second time."""
MOST = 1.4
"""Wall time over the least that it could be."""


@dataclass(frozen=True)
class Account:
    """Where the time of a study went, in seconds, by its journal."""

    wall: float
    """From its beginning to its last event; what comes before and after is imports and the final tables."""
    timed: float
    slow_timed: float
    """Of that, in slices whose repetitions take half a second or more."""
    warm_up: float
    cpu: dict[str, float]
    """CPU seconds of processes that prepare, build and verify."""
    busy: float
    """Seconds in which at least one such process was there."""
    compiled: int
    """Engines; those that were reused do not count."""
    processors: int
    answers: list[str]

    @property
    def least(self) -> float:
        """What it would take without any idle processor, loading, warm-up or recording."""
        return self.timed + sum(self.cpu.values()) / self.processors

    @property
    def answered(self) -> bool:
        """Whether there is a sentence for each workload that names something to run, or what it is undecided between."""
        return bool(self.answers) and not any("no answer" in text for text in self.answers)


def main() -> int:
    """Measure or read, and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--study", default="quick")
    parser.add_argument("--no-make", action="store_true")
    parser.add_argument("--from", dest="directories", type=Path, nargs="+", help="of studies")
    options = parser.parse_args()
    if options.directories:
        found = [(None, account(directory)) for directory in options.directories]
        for _, one in found:
            show(one)
        return int(not judged([one for _, one in found]))
    with tempfile.TemporaryDirectory(prefix="first-minutes-") as place:
        runs = directly(options, Path(place)) if options.no_make else with_make(options, Path(place))
        ok, accounts = True, []
        for number, (seconds, directory) in enumerate(runs, start=1):
            one = account(directory)
            accounts.append(one)
            print(f"time {number}: {seconds:.0f} s in all")
            show(one)
            ok &= one.wall <= STUDY_S
            if not options.no_make and number <= 2:
                ok &= seconds <= (FIRST_S if number == 1 else AGAIN_S)
        return int(not (judged(accounts) and ok))


def with_make(options: argparse.Namespace, place: Path) -> Iterator[tuple[float, Path]]:
    """``make benchmark`` in a clone, again and again: seconds, and the directory of the study."""
    clone = place / "clone"
    subprocess.run(["git", "clone", "--quiet", "--depth", "1", f"file://{ROOT}", clone], check=True)
    for _ in range(options.times):
        yield run(["make", "benchmark", f"STUDY={options.study}"], clone, place), newest(place)


def directly(options: argparse.Namespace, place: Path) -> Iterator[tuple[float, Path]]:
    """The study by itself, with nothing that an earlier one has left."""
    for number in range(options.times):
        fresh = place / str(number)
        fresh.mkdir()
        uri = f"sqlite:///{fresh / 'mlflow.db'}"
        command = [sys.executable, "-m", "mlflow_ngraph", "benchmark", options.study, "--tracking-uri", uri]
        yield run(command, fresh, fresh), newest(fresh)


def run(command: Sequence[str], where: Path, place: Path) -> float:
    """Run a command with caches and a home of its own; returns its seconds."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "VIRTUAL_ENV"))}
    env.update(NGRAPH_HOME=str(place / "home"), XDG_CACHE_HOME=str(place / "cache"))
    env.update(PIP_CACHE_DIR=str(place / "cache/pip"), UV_CACHE_DIR=str(place / "cache/uv"))
    if command[0] == "make":
        env.pop("PYTHONPATH", None)
    begin = time.perf_counter()
    done = subprocess.run(command, cwd=where, env=env, check=False)
    if done.returncode not in (0, 3):
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}")
    return time.perf_counter() - begin


def newest(place: Path) -> Path:
    """The directory of the study that ran last."""
    return max((place / "home/studies").iterdir(), key=lambda path: path.stat().st_ctime)


def account(directory: Path) -> Account:
    """What the journal of a study says."""
    events = list(journal.read(directory))
    slices = [event for event in events if event["event"] == "slice"]
    ended = [event for event in events if event["event"] == "process_ended"]
    begin = next(event["at"] for event in events if event["event"] == "session_started")
    purposes = dict.fromkeys(event["purpose"] for event in ended)
    warm_ups = [event["warm_up"].get("seconds", 0.0) for event in events if event["event"] == "cell_finished"]
    record = replay.load(directory)
    return Account(
        wall=events[-1]["at"] - begin,
        timed=sum(event["wall_s"] for event in slices),
        slow_timed=sum(event["wall_s"] for event in slices if statistics.median(event["durations_ns"]) >= 5e8),
        warm_up=sum(warm_ups) + sum(event["settle_s"] for event in slices),
        cpu={name: sum(event["cpu_s"] for event in ended if event["purpose"] == name) for name in purposes},
        busy=covered((event["started_at"], event["at"]) for event in ended),
        compiled=sum(event["event"] == "engine_built" and not event["reused"] for event in events),
        processors=int(record.fingerprint["processors"]),
        answers=answers(record),
    )


def show(one: Account) -> None:
    """Print it."""
    cpu = ", ".join(f"{name} {seconds:.0f}" for name, seconds in one.cpu.items())
    print(
        f"  study: wall {one.wall:.0f} s; timed {one.timed:.0f} s ({one.slow_timed:.0f} of them slow lanes), warm-up "
        f"{one.warm_up:.0f} s; building {one.busy:.0f} s for CPU seconds of {cpu} on {one.processors} processors; "
        f"{one.compiled} engines compiled\n  wall time over the least that it could be: {one.wall / one.least:.2f}"
    )
    for text in one.answers:
        print(f"  {text}", flush=True)


def judged(accounts: Sequence[Account]) -> bool:
    """Whether every study has an answer, and those that compiled something kept the bound."""
    ratios = [one.wall / one.least for one in accounts if one.compiled]
    answered = sum(one.answered for one in accounts)
    median = f"; median of {len(ratios)} ratios {statistics.median(ratios):.2f}" if ratios else ""
    print(f"{answered} of {len(accounts)} studies with an answer for every workload{median}")
    return answered == len(accounts) and (not ratios or statistics.median(ratios) <= MOST)


if __name__ == "__main__":
    raise SystemExit(main())
