"""Is a study on the server, whole and once, whenever recording it ends well, through a network that does not tell the truth?

``python benchmarks/untrue_answers.py [--schedules 200] [--first 0] [--keep DIRECTORY]``

A real server stands behind a proxy in this process. Of each schedule, which its number draws, some requests are answered
untruly: the answer is lost, the request comes twice, an earlier answer to the same question comes again, an answer is
invented, an upload is answered and not stored, or an error of a server comes instead. One study is recorded through it,
then once more without faults. Exit code 1: recording ended well and the server lacks a number or a file, or has a run or
an engine twice; or so after the second time.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from http.server import ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from support import records
from support.faulty_proxy import _Handler
from support.renamed_study import renamed
from support.server import Server

from mlflow_ngraph import runner
from mlflow_ngraph.engines.package import open_package
from mlflow_ngraph.errors import NGraphError
from mlflow_ngraph.execute import replay
from mlflow_ngraph.execute.record import StudyRecord
from mlflow_ngraph.recording import from_journal
from mlflow_ngraph.study import parse
from mlflow_ngraph.tracking import connection, content, download
from mlflow_ngraph.tracking.schema import Tag

Answer = tuple[int, list[tuple[str, str]], bytes]
STUDY = parse(
    {
        "name": "untrue",
        "workloads": ["block:mha?width=16"],
        "compilers": ["identity"],
        "batch_sizes": [1],
        "repetitions": 4,
        "slice_repetitions": 2,
        "warmup": {"window": 2, "max_seconds": 0.1},
        "limits": {"reload_seconds": 0},
    }
)
FAULTS = ("lost", "cut", "doubled", "stale", "empty", "portal", "not stored", "429", "500", "503")
_FREQUENT = (0.0, 0.02, 0.05, 0.1, 0.2)
"""Shares of requests that go wrong; a schedule has one of them, and at most so many faults as `_MOST`."""
_MOST = 6
_ERRORS = {"429": 429, "500": 500, "503": 503}


def main() -> int:
    """Draw schedules, and look at what the server has after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="a directory in which everything stays")
    records.add_option(parser)
    options = parser.parse_args()
    os.environ.update(MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR="0", MLFLOW_HTTP_REQUEST_BACKOFF_JITTER="0")
    os.environ["MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"] = "false"
    from_journal.LONGEST_PAUSE_S = 0.0
    place = nullcontext(str(options.keep)) if options.keep else tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    with place as kept:
        folder = Path(kept).resolve()
        directory = runner.run_study(STUDY, home=folder / "home", offline=True).directory
        server = Server(folder, "--workers", "1")
        server.start()
        try:
            with _proxied(server.address) as proxy:
                numbers = range(options.first, options.first + options.schedules)
                fine = sum(_course(number, directory, folder, proxy, server.address) for number in numbers)
        finally:
            server.end(signal.SIGTERM)
    about = "schedules whole and once, or healed by one more sync"
    records.keep(options, "untrue_answers", records.at_least(about, fine, len(numbers), f"of {len(numbers)}"))
    return int(fine != len(numbers))


def _course(number: int, measured_in: Path, folder: Path, proxy: _Proxy, address: str) -> bool:
    directory = renamed(measured_in, folder / "studies" / f"schedule-{number}")
    proxy.begin(number)
    said = "recorded"
    try:
        from_journal.sync_study(directory, tracking_uri=proxy.address)
    except NGraphError as error:
        said = f"refused: {error}"
    faults = proxy.end()
    record = replay.load(directory)
    experiments = [experiment.experiment_id for experiment in connection.connect(address).search_experiments()]
    problems = list(lacking(address, record, experiments)) if said == "recorded" else []
    raw = "SQL" in said
    try:
        from_journal.sync_study(directory, tracking_uri=address)
        problems += [f"after one more: {problem}" for problem in lacking(address, record, experiments)]
    except NGraphError as error:
        problems.append(f"after one more: {error}")
    problems += ["an error has SQL in it"] if raw else []
    told = ", ".join(f"{fault} {count}" for fault, count in sorted(faults.items())) or "no fault"
    print(f"{number} [{told}] {said[:200]}: {'; '.join(problems) or 'fine'}", flush=True)
    return not problems


def lacking(address: str, record: StudyRecord, experiments: list[str]) -> Iterator[str]:
    """What a server lacks of a study in some experiments, or has twice."""
    client = connection.connect(address)
    query = f"tags.`{Tag.STUDY_ID}` = '{record.id}'"
    runs = client.search_runs(experiments, query, max_results=1000)
    held = Counter(run.data.tags.get(Tag.LANE_ID, "") for run in runs)
    if held != Counter(["", *record.lanes]):
        yield f"runs by lane: {dict(held)}"
    for run in runs:
        if run.info.status != "FINISHED":
            yield f"run {run.info.run_id} is {run.info.status}"
        lane = run.data.tags.get(Tag.LANE_ID)
        said = content.lane_content(record, lane) if lane else content.study_content(record)
        if lost := {point.name for point in said.points} - set(run.data.metrics):
            yield f"run {run.info.run_id} lacks {sorted(lost)[:3]}"
        if not lane and Tag.RESULTS_SHA256 not in run.data.tags:
            yield "no table"
    models = client.search_logged_models(experiments, query)
    engines = [engine.id for lane in record.lanes.values() for engine in lane.engines]
    if sorted(model.tags[Tag.ENGINE_ID] for model in models) != sorted(engines):
        yield f"{len(models)} engines instead of {len(engines)}"
    for model in models:
        if str(model.status) != "READY":
            yield f"engine {model.model_id} is {model.status}"
            continue
        try:
            with tempfile.TemporaryDirectory() as target:
                package = download.pull(download.of_model(model, address), Path(target))
                open_package(package.directory, package.digest)
        except NGraphError as error:
            yield f"engine {model.model_id}: {error}"


class _Proxy(ThreadingHTTPServer):
    """Passes requests on, and answers some of them untruly."""

    daemon_threads = True

    def __init__(self, upstream: str) -> None:
        super().__init__(("127.0.0.1", 0), _Untrue)
        self.upstream = urlsplit(upstream)
        self.address = f"http://127.0.0.1:{self.server_port}"
        self.earlier: dict[tuple[str, str, bytes], Answer] = {}
        self._lock = threading.Lock()
        self._draw, self._share = random.Random(0), 0.0
        self._faults: Counter[str] = Counter()

    def begin(self, number: int) -> None:
        """Go wrong as this schedule does."""
        self._draw = random.Random(number)
        self._share = self._draw.choice(_FREQUENT[1:])
        self._faults.clear()
        self.earlier.clear()

    def end(self) -> Counter[str]:
        """Tell the truth from now on; returns how often each fault was."""
        self._share = 0.0
        return Counter(self._faults)

    def goes_wrong(self, method: str, question: tuple[str, str, bytes]) -> str:
        """How a request does that has just come; empty where it does not."""
        with self._lock:
            if self._draw.random() >= self._share or self._faults.total() >= _MOST:
                return ""
            fault = self._draw.choice(FAULTS)
            if (fault == "not stored" and method != "PUT") or (fault == "stale" and question not in self.earlier):
                return ""
            self._faults[fault] += 1
            return fault


class _Untrue(_Handler):
    server: _Proxy  # type: ignore[assignment]

    def pass_on(self) -> None:
        body = self._body()
        question = (self.command, self.path, body)
        fault = self.server.goes_wrong(self.command, question)
        answer = self._answer(fault, question)
        if answer is None:
            self._cut()
            return
        status, headers, content_ = answer
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content_)))
        self.end_headers()
        self.wfile.write(content_)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = pass_on  # noqa: N815 - the names that the library calls

    def _body(self) -> bytes:
        """The body, which uploads send in chunks."""
        if self.headers.get("Transfer-Encoding", "") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _answer(self, fault: str, question: tuple[str, str, bytes]) -> Answer | None:
        if fault == "stale":
            return self.server.earlier[question]
        if fault in _ERRORS:
            return _ERRORS[fault], [("Retry-After", "0")], b"<html>it is too much</html>"
        if fault in ("empty", "not stored"):
            return 200, [], b"" if fault == "empty" else b"{}"
        if fault == "portal":
            return 200, [("Content-Type", "text/html")], b"<html>please accept our terms</html>"
        if fault == "cut":
            return None
        answer = self._asked(question[2])
        if fault == "doubled":
            answer = self._asked(question[2])
        if answer is not None:
            self.server.earlier.setdefault(question, answer)
        return None if fault == "lost" else answer


@contextmanager
def _proxied(upstream: str) -> Iterator[_Proxy]:
    proxy = _Proxy(upstream)
    thread = threading.Thread(target=proxy.serve_forever, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.shutdown()


if __name__ == "__main__":
    sys.exit(main())
