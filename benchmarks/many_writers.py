"""Many devices that record to one shared server at the same time: is everything there, once, and what did it cost?

``python benchmarks/many_writers.py [--writers 16] [--workloads 2] [--store URI]``

A server of ours on PostgreSQL (one of its own, or ``--store``) is written to by as many processes at once, each with a study of
its own and six lanes a workload, as `recording_length.py` makes them. Nothing is measured, and there are no engine files. Exit code 1: an error, a run that is missing,
there twice, or not finished, a point of a curve that is lost or doubled, or more than three requests a lane.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import requests
from recording_length import BATCHES, COMPILERS, Written, append
from support.server import own_server

from mlflow_ngraph.execute import journal as journal_events
from mlflow_ngraph.execute.journal import Journal
from mlflow_ngraph.recording.study_upload import Recording
from mlflow_ngraph.tracking import connection, schema
from mlflow_ngraph.tracking.recorder import Recorder

MOST_REQUESTS = 3.0
"""A lane; those of the beginning and the end of a study come besides."""


def main() -> int:
    """Write, and look at what the server has."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--writers", type=int, default=16)
    parser.add_argument("--workloads", type=int, default=2)
    parser.add_argument("--store", help="a database that is there")
    parser.add_argument("--only", nargs=2, metavar=("STUDY", "URI"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        print(json.dumps(_record(options.workloads, *options.only)))
        return 0
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        Path(directory).chmod(0o755)  # run by root, PostgreSQL is another user
        with own_server(Path(directory), options.store) as address:
            return _compared(address, options.writers, options.workloads)


def _compared(address: str, writers: int, workloads: int) -> int:
    studies = [f"study-{number:08x}-20251009-090000" for number in range(writers)]
    command = [sys.executable, __file__, "--workloads", str(workloads), "--only"]
    began = time.perf_counter()
    processes = [
        subprocess.Popen([*command, study, address], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for study in studies
    ]
    answers = [process.communicate() for process in processes]
    seconds = time.perf_counter() - began
    failed = [said.strip() for process, (_, said) in zip(processes, answers, strict=True) if process.returncode]
    asked = [
        json.loads(out.splitlines()[-1])
        for process, (out, _) in zip(processes, answers, strict=True)
        if not process.returncode
    ]
    lanes = workloads * len(COMPILERS)
    wrong = failed or list(_wrong(address, studies, lanes))
    each = [answer["lanes"] / lanes for answer in asked]
    print(f"{writers} writers, {lanes} lanes each, at once: {seconds:.1f} s")
    if each:
        print(
            f"requests a lane: {min(each):.2f} to {max(each):.2f}; of a study, its beginning and end included: "
            f"{asked[0]['requests']}: {asked[0]['by']}"
        )
    for line in wrong:
        print(f"wrong: {line}")
    return int(bool(wrong) or not each or max(each) > MOST_REQUESTS)


def _wrong(address: str, studies: list[str], lanes: int) -> Iterator[str]:
    """What the server lacks, or has twice."""
    client = connection.connect(address)
    (experiment,) = client.search_experiments(filter_string="name = 'ngraph'")
    runs = client.search_runs([experiment.experiment_id], max_results=10_000)
    by_study = Counter(
        run.data.tags.get(schema.Tag.STUDY_ID) for run in runs if schema.Tag.LANE_ID not in run.data.tags
    )
    for study in studies:
        if by_study[study] != 1:
            yield f"{study} has {by_study[study]} study runs"
    by_lane = Counter(
        (run.data.tags.get(schema.Tag.STUDY_ID), run.data.tags[schema.Tag.LANE_ID])
        for run in runs
        if schema.Tag.LANE_ID in run.data.tags
    )
    if len(by_lane) != lanes * len(studies) or set(by_lane.values()) != {1}:
        yield f"{len(by_lane)} lanes instead of {lanes * len(studies)}, each with {sorted(set(by_lane.values()))} runs"
    for run in runs:
        if run.info.status != "FINISHED":
            yield f"run {run.info.run_id} is {run.info.status}"
    curve = f"{schema.CURVE}throughput"
    for run in runs:
        if schema.Tag.LANE_ID in run.data.tags:
            steps = sorted(point.step for point in client.get_metric_history(run.info.run_id, curve))
            if steps != sorted(BATCHES):
                yield f"run {run.info.run_id} has the batch sizes {steps}"


def _record(workloads: int, study: str, address: str) -> dict[str, object]:
    """Record a study, in this process, and count what the server was asked."""
    written, of_lanes = Written(workloads, study), 0
    with tempfile.TemporaryDirectory() as directory, _counted() as asked:
        home = Path(directory)
        with Journal(home) as journal:
            append(journal, written.beginning())
            recording = Recording(Recorder(address, "ngraph", patient=True), home, journal, None)
            recording.open()
            for plan in written.plans:
                append(journal, written.workload(plan))
                before = sum(asked.values())
                recording.workload(str(plan.ref), [lane.id for lane in plan.lanes])
                of_lanes += sum(asked.values()) - before
            recording.close("FINISHED")
        failures = [event["reason"] for event in journal_events.read(home) if event["event"] == "recording_failed"]
        if recording.problem or failures:
            raise SystemExit(recording.problem or failures[0])
    return {"lanes": of_lanes, "requests": sum(asked.values()), "by": dict(asked.most_common())}


@contextmanager
def _counted() -> Iterator[Counter[str]]:
    """Requests by method and path, without ids."""
    counts: Counter[str] = Counter()
    send = requests.Session.send

    def counting(self: requests.Session, request: requests.PreparedRequest, **options: object) -> requests.Response:
        path = str(request.path_url).split("?")[0].split("/artifacts/")[0]
        counts[f"{request.method} {path.rpartition('mlflow/')[2]}"] += 1
        return send(self, request, **options)

    requests.Session.send = counting  # type: ignore[method-assign]
    try:
        yield counts
    finally:
        requests.Session.send = send  # type: ignore[method-assign]


if __name__ == "__main__":
    raise SystemExit(main())
