"""How the time and memory of every verb that reads results grow with the number of cells, beside ``compare``'s.

    python benchmarks/growth.py /tmp/growth --cells 100,1000,5000,20000

A small study is measured once, and its record copied under other names: eight cells a study, each copy with models of its
own. Each verb is asked in a fresh process that has kept the tables and no answer, as after one more study was recorded; the
page's three answers are computed by the class that serves them. Stores are made in processes of their own, as a child's
peak of memory counts from its parent's on. Times are CPU seconds of the process, as the machine may be
shared. A verb fails where it takes more than twice ``compare``'s time at one size, or where its time grows faster than the
cells do from 5,000 on.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow_ngraph.execute.record import LaneRecord, StudyRecord

PAGE = "page"
VERBS = {
    "compare": "compare",
    "recommend": "recommend",
    "findings": "results findings",
    "history": "results history CELL",
    "report": "results report --no-log --output OUT",
}
MOST = 2.0
"""Most CPU time of a verb, as a multiple of ``compare``'s."""
LARGE = 5_000
"""Number of cells from which time grows at most with the cells."""
SPARE = 1.25
"""What the machine may add to a growth."""


def page(uri: str) -> None:
    """Answer what the page asks first."""
    from werkzeug.datastructures import MultiDict

    from mlflow_ngraph.analysis.listing import Server
    from mlflow_ngraph.ui import answers
    from mlflow_ngraph.ui.query import Query
    from mlflow_ngraph.ui.store import ResultStore

    server, question = Server(uri), Query.of(MultiDict())
    paths = {run.run_id: run.artifact_uri for run in server.study_runs()}
    store = ResultStore(uri)
    frame = store.newest(store.studies(), lambda run_id, path: Path(paths[run_id], path).read_bytes()).cells
    answers.options(frame), answers.comparison(frame, question), answers.findings(frame, question)


def copies(record: StudyRecord, cells: int) -> Iterator[StudyRecord]:
    """As many copies of a study as have so many cells, each with models of its own."""
    of_one = sum(len(lane.cells) for lane in record.lanes.values())
    for number in range(max(1, cells // of_one)):
        other = copy.deepcopy(record)
        other.id, other.name = f"{record.name}-{number:08x}-{number:06d}", f"{record.name}-{number % 7}"
        other.started_at += 60.0 * number - 1e7
        other.workloads = {f"{name}{number}": about for name, about in other.workloads.items()}
        other.lanes = {lane.lane.id: lane for lane in (_renamed(lane, number) for lane in other.lanes.values())}
        yield other


def _renamed(lane: LaneRecord, number: int) -> LaneRecord:
    old = lane.lane
    new = replace(
        old,
        id=f"{int(old.id, 16) + number:012x}"[-12:],
        workload=f"{old.workload}{number}",
        label=f"{old.label}{number}",
    )
    for batch, cell in lane.cells.items():
        cell.id, cell.lane = new.cell(batch), new.id
    return replace(lane, lane=new)


def spent(line: list[str], cache: Path, expected: tuple[int, ...] = (0, 3)) -> tuple[float, float]:
    """CPU seconds and largest resident MB of one fresh process."""
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL, env={**os.environ, "XDG_CACHE_HOME": str(cache)})
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in expected:
        raise SystemExit(f"{' '.join(line)}: exit code {process.returncode}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6


def seed(place: Path, cells: int) -> None:
    """Make a store with so many cells, and note the id of one."""
    import seed_server
    from support import small_study

    measured, target = place / "record.pickle", place / str(cells)
    if not measured.exists():
        measured.with_suffix(".new").write_bytes(pickle.dumps(small_study.measured(place / "home").record))
        measured.with_suffix(".new").rename(measured)
    record = pickle.loads(measured.read_bytes())  # noqa: S301 - written above
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    os.chdir(target)
    seed_server.seed_database(address(place, cells), small_study.EXPERIMENT, copies(record, cells))
    first = next(copies(record, 0))
    (target / "done").write_text(next(cell.id for lane in first.lanes.values() for cell in lane.cells.values()))


def address(place: Path, cells: int) -> str:
    """Address of the store with so many cells."""
    return f"sqlite:///{place}/{cells}/mlflow.db"


def measured(place: Path, cells: int, verbs: list[str], most_s: float) -> dict[str, tuple[float, float]]:
    """CPU seconds and peak memory of each verb at one size."""
    uri, done = address(place, cells), place / str(cells) / "done"
    if not done.exists():
        subprocess.run([sys.executable, __file__, place, "--cells", str(cells), "--seed"], check=True)
    cell = done.read_text()
    found = {}
    with tempfile.TemporaryDirectory() as directory:
        cache = Path(directory, "cache")
        program = [sys.executable, "-m", "mlflow_ngraph"]
        spent([*program, "compare", "--tracking-uri", uri], cache)
        lines = {
            name: [*program, *(verb.replace("CELL", cell).replace("OUT", directory).split()), "--tracking-uri", uri]
            for name, verb in VERBS.items()
        } | {PAGE: [sys.executable, __file__, uri, "--page"]}
        for name in verbs:
            shutil.rmtree(cache / "mlflow-ngraph" / "answers", ignore_errors=True)
            line = ["timeout", str(most_s), *lines[name]]
            found[name] = spent(line, cache, (0, 3, 124))
            print(cells, name, *(round(number, 1) for number in found[name]), flush=True)
    return found


def main() -> None:
    """Measure, print, and fail where a bound is not kept."""
    parser = argparse.ArgumentParser(description="Time the verbs that read results at several sizes.")
    parser.add_argument("place", help="a directory for the stores, or the address of one with --page")
    parser.add_argument("--cells", default="100,1000,5000,20000")
    parser.add_argument("--verbs", default=",".join([*VERBS, PAGE]))
    parser.add_argument("--most-s", type=float, default=900.0)
    parser.add_argument("--page", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--seed", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.page:
        page(options.place)
        return
    place = Path(options.place).resolve()
    if options.seed:
        seed(place, int(options.cells))
        return
    place.mkdir(parents=True, exist_ok=True)
    sizes, verbs = sorted(map(int, options.cells.split(","))), options.verbs.split(",")
    found = {cells: measured(place, cells, verbs, options.most_s) for cells in sizes}
    print(json.dumps(found, indent=2))
    problems = [
        f"{name} takes {found[cells][name][0]:.1f} s at {cells} cells, compare {found[cells]['compare'][0]:.1f}"
        for cells in sizes
        for name in verbs
        if "compare" in verbs and found[cells][name][0] > MOST * found[cells]["compare"][0]
    ]
    problems += [
        f"{name} takes {found[more][name][0] / found[less][name][0]:.1f} times as long for {more / less:.1f} times the cells"
        for less, more in pairwise(sizes)
        if less >= LARGE
        for name in verbs
        if found[more][name][0] / found[less][name][0] > SPARE * more / less
    ]
    if problems:
        raise SystemExit("; ".join(problems))


if __name__ == "__main__":
    main()
