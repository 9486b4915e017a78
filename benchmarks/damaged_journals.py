"""Journals that were cut off, changed, or written on a disk that is full or read only: recovered, or refused in one line?

    python benchmarks/damaged_journals.py [--parts cuts,resumed,lines,clock,full,frozen] [--cuts 12] [--seed 1]

A real study of two tiny modules is measured and recorded in a SQLite database of its own. Then

- ``cuts``: its journal is cut at every byte of its last ten lines. Reading it, forwards and backwards, how far it came, its
  record, and a journal that is opened and written on, must be those of the lines that are whole. This is done in this process, on the
  code that resuming, ``sync``, ``export`` and ``recompute`` begin with: a cut within a line is a cut before it.
- ``resumed``: it is cut before each of its last ten lines, and at ``--cuts`` random bytes before, and the study resumed, recorded by ``sync`` and recomputed:
  every cell must be ok, with the samples that it had, and the server's figures follow from them.
- ``lines``: each line is removed, doubled, exchanged with the next, altered, blanked, and something put before it: reading it must be refused
  with the file and the line; for one of the ways with each line also ``sync``, ``export`` and ``recompute``, and for six going on.
- ``clock``: the study is cut in the middle and goes on with the clock a day earlier.
- ``full``: the disk of home and database, 60 MB in memory, becomes full after each kind of event, and is emptied before the study goes on.
- ``frozen``: home is read only, before the study and after it, for every verb that writes there. (The last two need the rights to mount.)

Exit code 1: something else was raised, or a result was lost, doubled or another one.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from support import small_study
from support.answers import answer
from support.server import QUIET
from support.small_disk import SmallDisk, mounted

if TYPE_CHECKING:
    from mlflow_ngraph.execute.record import StudyRecord

LINES, DISK_MB = 10, 60
DAY_S = 86_400.0
PARTS = ("cuts", "resumed", "lines", "clock", "full", "frozen")
_JOURNAL = "journal.jsonl"


def main() -> int:
    """Do the harm, and print what became of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--cuts", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    os.environ.update(QUIET)
    failed = 0
    with tempfile.TemporaryDirectory(prefix="ngraph-damaged-") as place:
        harm = _Harm(Path(place), random.Random(options.seed), options.cuts)
        for part in options.parts.split(","):
            tally, begun = Counter[str](), time.monotonic()
            for name, problem in getattr(harm, part)():
                tally["wrong" if problem else "right"] += 1
                if problem:
                    print(f"WRONG {part}: {name}: {problem}"[:900], flush=True)
            seconds = time.monotonic() - begun
            print(f"{part}: {tally['right']} of {tally.total()} as they should be, in {seconds:.0f} s", flush=True)
            failed += tally["wrong"]
    return int(failed > 0)


class _Harm:
    """A study, and what is done to copies of it. Every part yields names with what was wrong, or nothing.

    Parameters
    ----------
    root : Path
        Where everything lies.
    cuts : int
        Random places where the journal is cut besides.
    """

    def __init__(self, root: Path, rng: random.Random, cuts: int) -> None:
        from mlflow import MlflowClient

        from mlflow_ngraph.execute import journal, replay

        self._root, self._rng, self._cuts = root, rng, cuts
        os.environ["XDG_CACHE_HOME"] = str(root / "cache")
        os.chdir(root)
        self._empty = root / "empty.db"
        MlflowClient(f"sqlite:///{self._empty}").search_experiments(max_results=1)
        shutil.copyfile(self._empty, root / "mlflow.db")
        self._home, self._uri = root / "home", f"sqlite:///{root}/mlflow.db"
        outcome = small_study.measured(self._home, self._uri)
        self._study, self._run = outcome.directory, outcome.where["run"].rpartition("/")[2]
        self._lines = (self._study / _JOURNAL).read_bytes().splitlines(keepends=True)
        self._events = list(journal.read(self._study))
        self._whole = replay.load(self._study)
        self._number = 0

    def cuts(self) -> Iterator[tuple[str, str]]:
        """Cut at every byte of the last lines, in this process."""
        content, start = b"".join(self._lines), sum(map(len, self._lines[:-LINES]))
        known: dict[int, tuple[str, str]] = {}
        place = self._copy(content)
        for end in range(start, len(content) + 1):
            whole = content[:end].count(b"\n")
            found = answer(lambda end=end, whole=whole: self._check_cut(place, content, end, whole, known))  # type: ignore[misc]
            yield f"after byte {end}", "" if found.kind == "taken" else found.said

    def _check_cut(self, place: Path, content: bytes, end: int, whole: int, known: dict[int, tuple[str, str]]) -> None:
        from mlflow_ngraph.execute import journal, replay, study_directories

        path = place / _JOURNAL
        path.write_bytes(content[:end])
        if list(journal.read(place)) != self._events[:whole]:
            raise RuntimeError("other events are read")
        if list(journal.read_backwards(place)) != self._events[:whole][::-1]:
            raise RuntimeError("other events are read backwards")
        if whole not in known:
            known[whole] = study_directories.end(place), repr(replay.fold(self._events[:whole]))
        if (study_directories.end(place), repr(replay.load(place))) != known[whole]:
            raise RuntimeError("another record follows, or another end")
        journal.Journal(place).close()
        if path.read_bytes() != b"".join(self._lines[:whole]):
            raise RuntimeError("opening it does not leave the whole lines")
        with journal.Journal(place) as writer:
            writer.append("recording_failed", reason="somebody tries")
        if [event["event"] for event in journal.read(place)][whole:] != ["recording_failed"]:
            raise RuntimeError("what is written behind it is not read")

    def resumed(self) -> Iterator[tuple[str, str]]:
        """Cut, resumed, recorded, recomputed."""
        sizes = [sum(map(len, self._lines[:count])) for count in range(len(self._lines) + 1)]
        ends = sizes[-LINES - 1 : -1] + self._rng.sample(range(sizes[2], sizes[-LINES - 1]), self._cuts)
        for end in sorted(ends):
            yield f"cut after byte {end}", self._finished(b"".join(self._lines)[:end])

    def _finished(self, content: bytes) -> str:
        """What is wrong with a study that goes on from a journal, or nothing."""
        from mlflow_ngraph.execute import journal, replay
        from mlflow_ngraph.recording.from_journal import sync_study
        from mlflow_ngraph.runner import run_study

        home = self._root / f"home-{self._next()}"
        place = self._copy(content, home)
        # The study was on its way to no server: what it has is recorded by sync.
        before = replay.load(place) if b"\n" in content else None
        uri = self._database(home)

        def call() -> None:
            run_study(small_study.study(), resume="always", home=home, offline=True)
            sync_study(place, tracking_uri=uri, experiment=small_study.EXPERIMENT)

        found = answer(call, 300)
        if found.kind != "taken":
            return f"{found.kind}: {found.said}"
        if not (place / _JOURNAL).read_bytes().startswith(content[: content.rfind(b"\n") + 1]):
            return "lines were lost"
        if problem := self._wrong(replay.load(place), before):
            return problem
        if Counter(event["event"] for event in journal.read(place))["study_started"] != 1:
            return "it was begun twice"
        problem = self._differs(uri)
        shutil.rmtree(home)
        return problem

    def _wrong(self, record: StudyRecord, before: StudyRecord | None) -> str:
        """What a record lacks, or has that is not what was measured."""
        cells = {cell.id: cell for lane in record.lanes.values() for cell in lane.cells.values()}
        expected = {cell.id for lane in self._whole.lanes.values() for cell in lane.cells.values()}
        if set(cells) != expected:
            return f"cells {set(cells) ^ expected} are missing, or too many"
        if bad := {cell.id: cell.reason for cell in cells.values() if cell.verdict != "ok"}:
            return f"cells are not ok: {bad}"
        had = [cell for lane in before.lanes.values() for cell in lane.cells.values()] if before else []
        changed = [cell.id for cell in had if cells[cell.id].samples != cell.samples and cell.verdict == "ok"]
        return f"cells {changed} have other samples than were measured" if changed else ""

    def _differs(self, uri: str) -> str:
        """What is wrong with what a server has, or nothing."""
        from mlflow import MlflowClient

        from mlflow_ngraph_archives.recompute import recompute

        client = MlflowClient(uri)
        runs = client.search_runs([client.get_experiment_by_name(small_study.EXPERIMENT).experiment_id])
        kinds = Counter(run.data.tags.get("ngraph.kind") for run in runs)
        if kinds != Counter(study=1, lane=len(self._whole.lanes)):
            return f"runs by kind: {dict(kinds)}"
        if left := [run.info.status for run in runs if run.info.status != "FINISHED"]:
            return f"runs are {left}"
        if backwards := [run.info.run_name for run in runs if run.info.end_time < run.info.start_time]:
            return f"runs {backwards} ended before they began"
        (study,) = [run for run in runs if run.data.tags["ngraph.kind"] == "study"]
        again = recompute(study.info.run_id, uri)
        return f"{len(again.differences)} figures differ" if len(again.differences) else ""

    def lines(self) -> Iterator[tuple[str, str]]:
        """Lines in the middle."""
        count = len(self._lines)
        going_on = set(self._rng.sample(range(count - 1), 6))
        for number in range(count):
            spoiled = list(self._spoiled(number))
            thoroughly = self._rng.choice(spoiled)[0]
            for name, changed in spoiled:
                if b"".join(changed) == b"".join(self._lines):
                    continue
                if number == count - 1 and name == "removed":
                    continue  # that is a cut
                everything = name == thoroughly
                yield f"line {number + 1} {name}", self._refused(b"".join(changed), everything, number in going_on)

    def _spoiled(self, number: int) -> Iterator[tuple[str, list[bytes]]]:
        lines, line = self._lines, self._lines[number]
        before, after = lines[:number], lines[number + 1 :]
        middle = len(line) // 2
        yield "removed", before + after
        yield "doubled", [*before, line, line, *after]
        if after:
            yield "exchanged with the next", [*before, after[0], line, *after[1:]]
        yield "altered", [*before, line[:middle] + bytes([line[middle] ^ 1]) + line[middle + 1 :], *after]
        yield "cut short", [*before, line[:middle] + b"\n", *after]
        yield "joined to the next", [*before, line[:-1], *after] if after else lines
        yield "blanked", [*before, b"\n", *after]
        yield "behind an empty one", [*before, b"\n", line, *after]
        yield "behind one of zeros", [*before, b"\0" * 40 + b"\n", line, *after]

    def _refused(self, content: bytes, everything: bool, going_on: bool) -> str:
        from mlflow_ngraph.execute import replay
        from mlflow_ngraph.recording.from_journal import sync_study
        from mlflow_ngraph.runner import run_study
        from mlflow_ngraph_archives.export import export

        home = self._root / "spoiled"
        place = self._copy(content, home)
        calls: dict[str, Callable[[], object]] = {"reading": lambda: replay.load(place)}
        if everything:
            calls |= {
                "sync": lambda: sync_study(place, tracking_uri=self._uri, experiment=small_study.EXPERIMENT),
                "export": lambda: export([place], home / "study.tar"),
                "recompute": lambda: self._recomputed(content),
            }
        if everything and going_on:
            calls["going on"] = lambda: run_study(small_study.study(), resume="always", home=home, offline=True)
        try:
            for name, call in calls.items():
                found = answer(call, 120)
                if found.kind != "refused" or _JOURNAL not in found.said or "line " not in found.said:
                    return f"{name}: {found.kind}: {found.said}"
            if (place / _JOURNAL).read_bytes() != content:
                return "the journal was changed"
        finally:
            shutil.rmtree(home)
        return ""

    def _recomputed(self, content: bytes) -> None:
        from mlflow_ngraph_archives.recompute import recompute

        (stored,) = self._root.glob(f"mlruns/*/{self._run}/artifacts/{_JOURNAL}")
        good = stored.read_bytes()
        stored.write_bytes(content)
        try:
            recompute(self._run, self._uri)
        finally:
            stored.write_bytes(good)

    def clock(self) -> Iterator[tuple[str, str]]:
        """The clock of the process that writes the journal goes back by a day, before the study goes on and for good."""
        kinds = [event["event"] for event in self._events]
        for kind in ("session_started", "workload_prepared", "cell_ready", "cell_finished", "lane_finished"):
            content = b"".join(self._lines[: kinds.index(kind) + 1])
            now, now_ns = time.time, time.time_ns
            with (
                mock.patch("time.time", lambda now=now: now() - DAY_S),
                mock.patch("time.time_ns", lambda now_ns=now_ns: now_ns() - int(DAY_S * 1e9)),
            ):
                yield f"back after {kind}", self._finished(content)

    def full(self) -> Iterator[tuple[str, str]]:
        """The disk becomes full."""
        for kind in dict.fromkeys(event["event"] for event in self._events):
            with mounted(self._root / f"disk-{self._next()}", DISK_MB) as disk:
                yield f"full after {kind}", self._filled(disk, kind)

    def _filled(self, disk: SmallDisk, kind: str) -> str:
        from mlflow_ngraph.execute import replay
        from mlflow_ngraph.runner import run_study

        home = disk.place / "home"
        home.mkdir()
        uri = self._database(disk.place)
        observer, told = _Filling(disk, kind), list[str]()

        def measure() -> None:
            # As MLflow keeps artifacts beside a database: in the working directory.
            os.chdir(disk.place)
            with redirect_stderr(io.StringIO()):
                outcome = run_study(
                    small_study.study(),
                    home=home,
                    tracking_uri=uri,
                    experiment=small_study.EXPERIMENT,
                    observer=observer,
                )
            told.append(outcome.unrecorded)

        try:
            found = answer(measure, 300)
            if not observer.done or found.kind == "defect" or (found.kind == "refused" and "space" not in found.said):
                return f"full: {found.kind}: {found.said}"
            disk.empty()
            before = [path.read_bytes() for path in home.glob(f"studies/*/{_JOURNAL}")]
            # A study that is recorded has come to its end: the same command would measure anew.
            found = found if told and not told[-1] else answer(measure, 300)
            if found.kind != "taken" or told[-1]:
                return f"with room again: {found.kind}: {found.said or told[-1]}"
            begun = [path for path in home.glob(f"studies/*/{_JOURNAL}") if path.stat().st_size]
            if len(begun) != 1:
                return f"there are {len(begun)} studies"
            if before and not begun[0].read_bytes().startswith(before[0]):
                return "lines were lost"
            return self._wrong(replay.load(begun[0].parent), None) or self._differs(uri)
        finally:
            os.chdir(self._root)

    def frozen(self) -> Iterator[tuple[str, str]]:
        """Home is read only: every verb that writes there."""
        with mounted(self._root / f"disk-{self._next()}", DISK_MB) as disk:
            home, archive = disk.place / "home", self._root / "frozen.tar"
            (home / "studies").mkdir(parents=True)
            study = self._root / "small.yaml"
            study.write_text(small_study.study().to_yaml())
            shutil.copytree(self._study, home / "studies" / self._study.name)
            shutil.copytree(self._home / "engines", home / "engines")
            _said(["study", "export", str(self._study), "-o", str(archive)])
            disk.freeze()
            at, uri = ["--home", str(home)], ["--tracking-uri", self._uri]
            directory = str(home / "studies" / self._study.name)
            for verb in (
                ["benchmark", str(study), "--offline", *at],
                ["benchmark", str(study), "--offline", "--resume", *at],
                ["study", "sync", directory, *uri],
                ["study", "sync", "--all", *at, *uri],
                ["study", "export", directory, "-o", str(self._root / "again.tar")],
                ["study", "export", str(self._study), "-o", str(home / "again.tar")],
                ["study", "import", str(archive), "--offline", *at],
                ["local", "clean", "--study", self._study.name, "--yes", *at],
                ["local", "clean", "cache", "--yes", *at],
                ["local", "cache", "--prune", "--max-size", "0", *at],
                ["local", "cache", *at],
                ["local", "clean", *at],
            ):
                code, out, err = _said(verb)
                # Some list what they could not remove, and say of each why.
                errors = [line for line in err.splitlines() if line.startswith("error: ")]
                wrong = "Traceback" in err or "unexpected" in err or len(errors) > 1 or (code and not (errors or out))
                yield " ".join(verb[:2]), f"{code}: {err[-500:]} {out[-200:]}" if wrong else ""
            disk.freeze(frozen=False)
            same = (Path(directory) / _JOURNAL).read_bytes() == b"".join(self._lines)
            yield "the journal", "" if same else "was changed"

    def _database(self, folder: Path) -> str:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(self._empty, folder / "mlflow.db")
        return f"sqlite:///{folder}/mlflow.db"

    def _copy(self, content: bytes, home: Path | None = None) -> Path:
        """The study with another journal."""
        place = (home or self._root / f"home-{self._next()}") / "studies" / self._study.name
        shutil.copytree(self._study, place)
        (place / _JOURNAL).write_bytes(content)
        return place

    def _next(self) -> int:
        self._number += 1
        return self._number


class _Filling:
    """Fills a disk after the first event of a kind."""

    def __init__(self, disk: SmallDisk, kind: str) -> None:
        self._disk, self._kind = disk, kind
        self.done = False

    def on_event(self, event: dict[str, Any]) -> None:
        """Called with every event, after it is on disk."""
        if event["event"] == self._kind and not self.done:
            self.done = True
            self._disk.fill()


def _said(arguments: list[str]) -> tuple[int, str, str]:
    """Exit code and output of a verb."""
    from mlflow_ngraph.cli.app import run

    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = run(arguments)
    return code, out.getvalue(), err.getvalue()


if __name__ == "__main__":
    sys.exit(main())
