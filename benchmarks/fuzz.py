"""Inputs that are nearly right, for every format that is read from others: is each taken, or refused in one line?

    python benchmarks/fuzz.py [--seconds 600] [--formats study,manifest,...] [--seed 1] [--kept DIR]

A small real study gives the inputs to begin with: its study file, a manifest, its journal, its archive, its results table, and
requests for one of its engines. They are spoiled by chance, with a seed: bytes changed, moved, doubled and cut off; values, keys
and branches of documents replaced; and journals, archives and packages whose digests fit again, as somebody makes them who means
harm. Each format has a process of its own and ``--seconds``. A defect is any exception that is not of the package's own tree,
a message of several lines, an input that takes longer than 20 s, a process that ends or has more than 500 MB, and of `serve` a
status of 500 or a traceback in its log. Inputs that show one are kept. Exit code 1: there was one.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from support import requests_fuzzed, small_study
from support.answers import LIMIT_S, answer
from support.fuzzed import FORMATS, Corpus
from support.server import QUIET

MOST_MB = 500
SERVED = "serve"
_LIMIT_BYTES = 4 << 30
"""Of address space that is written to: a bomb ends its own process, and not the machine."""
_SLACK_S = 60.0
_SHOWN = 12


def main() -> int:
    """Fuzz each format, and print a line for each and one for every class of defect."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--formats", default=",".join([*FORMATS, SERVED]))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kept", type=Path, help="where inputs that show a defect are kept")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ.update(QUIET)
    if options.worker:
        return _worker(options.worker, options.formats, options.seconds, options.seed, options.kept)
    kept = options.kept or Path(tempfile.mkdtemp(prefix="ngraph-fuzz-"))
    kept.mkdir(parents=True, exist_ok=True)
    failed = 0
    with tempfile.TemporaryDirectory(prefix="ngraph-fuzz-corpus-") as place:
        small_study.left_in(Path(place))
        for name in options.formats.split(","):
            failed += _format(name, Path(place), options.seconds, options.seed, kept)
    print(f"inputs with defects are in {kept}" if failed else "no defect", flush=True)
    return int(failed > 0)


def _format(name: str, place: Path, seconds: float, seed: int, kept: Path) -> int:
    """Fuzz one format in a process of its own; returns whether it has defects."""
    command = [sys.executable, str(Path(__file__).resolve()), "--worker", str(place), "--formats", name]
    command += ["--seconds", str(seconds), "--seed", str(seed), "--kept", str(kept)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        said, _ = process.communicate(timeout=seconds + LIMIT_S + _START_S + _SLACK_S)
        ended = f"ended with {process.returncode}"
    except subprocess.TimeoutExpired:
        process.kill()
        said, ended = process.communicate()[0], "hung"
    print(said, end="", flush=True)
    if process.returncode in (0, 1) and said.startswith(name):
        return process.returncode
    print(f"{name}: its process {ended}; the last input is {kept / f'{name}-last'}", flush=True)
    return 1


_START_S = 120.0


def _worker(place: Path, name: str, seconds: float, seed: int, kept: Path) -> int:
    left, scratch = small_study.Left.of(place), Path(tempfile.mkdtemp(prefix=f"{name}-", dir=place))
    corpus = Corpus(left.study, left.package, left.archive, scratch)
    try:
        if name == SERVED:
            return _served(corpus, seconds, seed, kept)
        return _read(name, corpus, seconds, seed, kept)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _read(name: str, corpus: Corpus, seconds: float, seed: int, kept: Path) -> int:
    resource.setrlimit(resource.RLIMIT_DATA, (_LIMIT_BYTES, _LIMIT_BYTES))
    form, rng = FORMATS[name](corpus), random.Random(f"{name} {seed}")
    last, tally, defects, longest, peak = kept / f"{name}-last", Counter[str](), _Defects(name, kept), 0.0, 0.0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        content = form.spoil(rng)
        last.write_bytes(content)  # in case nobody can say it any more
        found = answer(lambda content=content: form.read(content))  # type: ignore[misc]
        tally[found.kind] += 1
        longest = max(longest, found.seconds)
        if found.kind == "defect":
            defects.note(content, found.said)
        before, peak = peak, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        if peak > MOST_MB >= before > 0:
            defects.note(content, f"{peak:.0f} MB of memory, {before:.0f} before")
    last.unlink()
    print(
        f"{name}: {tally.total()} inputs in {seconds:.0f} s, {tally['refused']} refused in one line, {tally['taken']} taken, "
        f"{tally['defect']} defects; longest {longest:.1f} s, {peak:.0f} MB"
    )
    return defects.told()


def _served(corpus: Corpus, seconds: float, seed: int, kept: Path) -> int:
    rng, requests = random.Random(f"{SERVED} {seed}"), requests_fuzzed.Requests(corpus.package)
    count, answered, longest, peak, defects = 0, 0, 0.0, 0.0, _Defects(SERVED, kept)
    with requests_fuzzed.server(corpus.package, corpus.scratch) as asked:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            (request, framed), begun = requests.one(rng), time.monotonic()
            wrong, computed = asked.answer(request, framed)
            count, answered = count + 1, answered + computed
            longest = max(longest, time.monotonic() - begun)
            if wrong:
                defects.note(request, wrong)
            if asked.process.poll() is not None:
                break
            before, peak = peak, max(peak, asked.memory_mb())
            if peak > MOST_MB >= before > 0:
                defects.note(request, f"{peak:.0f} MB of memory")
        log = asked.log.read_text(errors="replace")
    if "Traceback" in log:
        defects.note(log.encode(), "a traceback in the log")
    print(
        f"{SERVED}: {count} requests in {seconds:.0f} s, {answered} computed, {defects.count} defects; longest {longest:.1f} s, {peak:.0f} MB"
    )
    return defects.told()


class _Defects:
    """What was wrong, by what was said of it; one input of each is kept."""

    def __init__(self, name: str, kept: Path) -> None:
        self._name, self._kept = name, kept
        self._seen = Counter[str]()
        self._places: dict[str, Path] = {}

    @property
    def count(self) -> int:
        return self._seen.total()

    def note(self, content: bytes, said: str) -> None:
        kind = "".join(letter for letter in said if not letter.isdigit())[:160]
        self._seen[kind] += 1
        if kind not in self._places:
            self._places[kind] = self._kept / f"{self._name}-{hashlib.sha256(kind.encode()).hexdigest()[:8]}"
            self._places[kind].write_bytes(content)
            self._places[kind].with_suffix(".txt").write_text(said + "\n")

    def told(self) -> int:
        for kind, count in self._seen.most_common(_SHOWN):
            print(
                f"  {count} x {self._places[kind].with_suffix('.txt').read_text().strip()} ({self._places[kind].name})"
            )
        return int(bool(self._seen))


if __name__ == "__main__":
    sys.exit(main())
