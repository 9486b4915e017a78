"""Does a bad network to the tracking server disturb what is measured, hold it up, or lose anything?

``python benchmarks/faulty_network.py [STUDY] [--workloads REF,...] [--cell-seconds 10] [--parts faults,away] [--keep DIRECTORY]``

A real server stands behind a proxy that goes wrong (``support/faulty_proxy.py``).

- ``faults``: a study is measured and recorded while every second window of a few seconds is faulty. What was timed within
  faulty windows is compared with what the same lanes took in the windows beside them. Then the study is recorded to its end,
  through the faults, while the server is killed and started again, and the server is asked for every point and every engine.
- ``away``: the same study, without faults but with nobody who answers: at its start, in the middle, at its end, all the time.
  Counted is for how long measuring waited for what records, at most for one workload, as its lanes take turns.

Exit code 1: throughput differs by more than 1 % for sure, a lane waited for more than a second, or the server lacks
anything, or has it twice.
"""

from __future__ import annotations

import argparse
import math
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from scipy import stats
from support.faulty_proxy import Faulty, faulty, window
from support.server import Server

from mlflow_ngraph import runner
from mlflow_ngraph.errors import NGraphError
from mlflow_ngraph.execute import journal, replay
from mlflow_ngraph.execute.record import StudyRecord
from mlflow_ngraph.recording.from_journal import sync_study
from mlflow_ngraph.recording.recorder_process import RecorderProcess
from mlflow_ngraph.study import Study, load
from mlflow_ngraph.tracking import connection, schema
from mlflow_ngraph.verdicts import Verdict

SAME, LONGEST_S = 0.01, 1.0
_TRIES, _PAUSE_S = 100, 1.0
"""How often `sync` is called, as often as a person would."""
_MANY = 100_000
_FEWEST = 5
"""Pairs of windows of which an interval says something."""
_NS = 1e9


def main() -> int:
    """Run the parts that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", nargs="?", default="quick")
    parser.add_argument("--workloads")
    parser.add_argument(
        "--cell-seconds", type=float, default=10.0, help="timed in the part faults; the others have the study's own"
    )
    parser.add_argument("--parts", default="faults,away")
    parser.add_argument("--keep", type=Path, help="a directory in which everything stays")
    options = parser.parse_args()
    asked = {"workloads": options.workloads.split(",")} if options.workloads else {}
    parts = {
        "faults": lambda folder: _faults(_longer(load(options.study, asked), options.cell_seconds), folder),
        "away": lambda folder: _away(load(options.study, asked), folder),
    }
    place = nullcontext(str(options.keep)) if options.keep else tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    with place as kept:
        kept_to = [parts[name](Path(kept).resolve()) for name in options.parts.split(",")]
    return int(not all(kept_to))


def _longer(study: Study, cell_seconds: float) -> Study:
    """The same with every cell timed for so long."""
    limits = study.limits.model_copy(update={"cell_seconds": cell_seconds})
    return study.model_copy(update={"repetitions": _MANY, "limits": limits})


def _faults(study: Study, folder: Path) -> bool:
    with _served(folder / "server") as server, faulty(server.address, folder / "proxy") as proxy:
        proxy.do("faulty")
        outcome = runner.run_study(study, home=folder, tracking_uri=proxy.address, resume="never")
        print(f"measured: {_verdicts(outcome.record)}; not recorded yet: {outcome.unrecorded or 'nothing'}")
        came, wrong = proxy.counted()
        print(f"{came} requests came, {wrong} went wrong")
        ratio, low, high, pairs = _disturbed(outcome.directory)
        print(
            f"throughput in faulty windows: {ratio:.4f} of that beside them (95 % {low:.4f} to {high:.4f}, {pairs} pairs)"
        )
        with _restarting(server) as killed:
            tries = _synchronised(outcome.directory, proxy)
        proxy.do("clear")
        problems = list(_lacking(server.address, replay.load(outcome.directory)))
        print(f"recorded to its end after {tries} calls of sync, the server killed {len(killed)} times meanwhile")
        for problem in problems or ["everything is there, once"]:
            print(f"server: {problem}")
    return not problems and low <= 1 + SAME and high >= 1 - SAME


def _away(study: Study, folder: Path) -> bool:
    waited = {}
    with _served(folder / "server") as server, faulty(server.address, folder / "proxy-away") as proxy:
        for when, course in _COURSES.items():
            proxy.do(course.get("", "clear"))
            with _watched() as times:
                outcome = runner.run_study(
                    study, home=folder, tracking_uri=proxy.address, resume="never", observer=_Following(proxy, course)
                )
            proxy.do("clear")
            tries = _synchronised(outcome.directory, proxy) if outcome.unrecorded else 0
            problems = list(_lacking(server.address, replay.load(outcome.directory)))
            waited[when] = _longest(times, outcome.directory)
            print(
                f"{when}: {_verdicts(outcome.record)}; lanes waited for {waited[when]:.2f} s at most, "
                f"the study {times['preflight'][0][1]:.1f} s at its start and {times['close'][0][1]:.1f} s at its end; "
                f"{tries} calls of sync; {'; '.join(problems) or 'everything is there, once'}",
                flush=True,
            )
            if problems:
                waited[when] = math.inf
    return max(waited.values()) <= LONGEST_S


_COURSES: Mapping[str, Mapping[str, str]] = {
    "there": {},
    "away at the start": {"": "away", "cell_finished": "clear"},
    "away in the middle": {"slice": "away", "study_finished": "clear"},
    "away at the end": {"lane_finished": "away"},
    "away all the time": {"": "away"},
}
"""What the proxy does from the beginning, and from the first event of a kind on."""


class _Following:
    """Has a proxy do something when an event is told for the first time."""

    def __init__(self, proxy: Faulty, course: Mapping[str, str]) -> None:
        self._proxy = proxy
        self._course = dict(course)

    def on_event(self, event: Mapping[str, Any]) -> None:
        if what := self._course.pop(event["event"], ""):
            self._proxy.do(what)


@contextmanager
def _served(folder: Path) -> Iterator[Server]:
    folder.mkdir(parents=True, exist_ok=True)
    server = Server(folder, "--workers", "1")
    try:
        server.start()
        yield server
    finally:
        server.end(signal.SIGKILL)


@contextmanager
def _restarting(server: Server, every_s: float = 6.0) -> Iterator[list[float]]:
    """Kill a server again and again, and start it at once; gives when it was killed."""
    ended, killed = threading.Event(), list[float]()

    def go_on() -> None:
        while not ended.wait(every_s):
            server.end(signal.SIGKILL)
            killed.append(time.monotonic())
            server.start()

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield killed
    finally:
        ended.set()
        thread.join()


@contextmanager
def _watched() -> Iterator[dict[str, list[tuple[float, float]]]]:
    """When measuring began to wait for what records, and for how many seconds, by what it waited for."""
    waits: dict[str, list[tuple[float, float]]] = defaultdict(list)

    class Watched(RecorderProcess):
        def preflight(self) -> str:
            with noted("preflight"):
                return super().preflight()

        def close(self, status: str) -> None:
            with noted("close"):
                super().close(status)

        def _pause(self) -> bool:
            with noted("pause"):
                return super()._pause()

    @contextmanager
    def noted(what: str) -> Iterator[None]:
        began = time.time()
        try:
            yield
        finally:
            waits[what].append((began, time.time() - began))

    runner.RecorderProcess = Watched  # type: ignore[attr-defined]
    try:
        yield waits
    finally:
        runner.RecorderProcess = RecorderProcess  # type: ignore[attr-defined]


def _longest(waits: Mapping[str, list[tuple[float, float]]], directory: Path) -> float:
    """For how many seconds the lanes of a workload waited, at most."""
    ends = defaultdict(list)
    record = replay.load(directory)
    for event in journal.read(directory):
        if event["event"] == "slice":
            ends[record.lanes[event["lane"]].lane.workload].append(event["at"])
    totals, begin = [], 0.0
    for last in sorted(max(moments) for moments in ends.values()):
        totals.append(sum(seconds for moment, seconds in waits["pause"] if begin < moment <= last))
        begin = last
    return max(totals)


def _disturbed(directory: Path) -> tuple[float, float, float, int]:
    """How throughput in faulty windows is to that in the windows before them: a ratio, its 95 % interval, and their number."""
    times: dict[tuple[str, int], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for event in journal.read(directory):
        if event["event"] != "slice" or event["companion"]:
            continue
        begin = event["started_ns"] / _NS
        first, last = window(begin), window(begin + event["wall_s"])
        if first == last:
            lane, number = event["cell"], len(event["durations_ns"])
            times[lane, number][first].extend(math.log(value) for value in event["durations_ns"])
    pairs = defaultdict(list)
    for windows in times.values():
        for number, values in windows.items():
            if number % 2 and number - 1 in windows:
                # Less time is more throughput.
                pairs[number].append(statistics.median(windows[number - 1]) - statistics.median(values))
    ratios = [statistics.fmean(values) for values in pairs.values()]
    if len(ratios) < _FEWEST:
        raise SystemExit(
            f"{len(ratios)} pairs of windows were measured in: too few to compare; ask for more --cell-seconds"
        )
    mean = statistics.fmean(ratios)
    reach = float(stats.t.ppf(0.975, len(ratios) - 1)) * statistics.stdev(ratios) / math.sqrt(len(ratios))
    return math.exp(mean), math.exp(mean - reach), math.exp(mean + reach), len(ratios)


def _synchronised(directory: Path, proxy: Faulty) -> int:
    """Record the rest of a study; how many calls that took."""
    said = Counter[str]()
    for number in range(1, _TRIES + 1):
        try:
            sync_study(directory, tracking_uri=proxy.address)
        except NGraphError as error:
            said[str(error)] += 1
            time.sleep(_PAUSE_S)
        else:
            for text, count in said.most_common():
                print(f"{count} calls of sync ended with: {text}", flush=True)
            return number
    raise SystemExit(f"not recorded after {_TRIES} calls of sync")


def _lacking(address: str, record: StudyRecord) -> Iterator[str]:
    """What the server lacks of a study, or has twice."""
    client = connection.connect(address)
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    asked = f"tags.`{schema.Tag.STUDY_ID}` = '{record.id}'"
    runs = defaultdict(list)
    for run in client.search_runs(experiments, asked, max_results=1000):
        runs[run.data.tags.get(schema.Tag.LANE_ID, "")].append(run)
    if sorted(runs) != sorted(["", *record.lanes]) or any(len(same) != 1 for same in runs.values()):
        yield f"runs of {len(runs) - ('' in runs)} lanes of {len(record.lanes)}, {[len(same) for same in runs.values()]} of each"
    for lane_id, lane in record.lanes.items():
        for run in runs[lane_id]:
            if run.info.status != "FINISHED":
                yield f"{lane.lane.compiler_label} on {lane.lane.workload} is {run.info.status}"
            points = sorted(
                (point.step, point.value)
                for point in client.get_metric_history(run.info.run_id, f"{schema.CURVE}throughput")
            )
            measured = sorted(
                (batch, cell.metrics["throughput"]) for batch, cell in lane.cells.items() if cell.verdict is Verdict.OK
            )
            if points != measured:
                yield f"{lane.lane.compiler_label} on {lane.lane.workload} has {points} instead of {measured}"
            yield from _unfit(address, run.info.run_id, sorted(batch for batch, _ in measured))


def _unfit(address: str, run: str, batches: list[int]) -> Iterator[str]:
    """Which engines of a lane cannot be pulled, and loaded and verified."""
    for batch in batches[:1]:
        with tempfile.TemporaryDirectory() as folder:
            pulled = subprocess.run(
                [*(sys.executable, "-m", "mlflow_ngraph", "engine", "pull", run, "--batch-sizes", str(batch)),
                 *("--to", f"{folder}/engine", "--tracking-uri", address)],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
        if pulled.returncode:
            yield f"an engine cannot be pulled: {pulled.stderr.strip().splitlines()[-1:]}"


def _verdicts(record: StudyRecord) -> str:
    cells = [cell.verdict for lane in record.lanes.values() for cell in lane.cells.values()]
    return f"{cells.count(Verdict.OK)} of {len(cells)} cells ok"


if __name__ == "__main__":
    raise SystemExit(main())
