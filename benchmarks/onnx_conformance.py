"""What each compiler does with the conformance cases of the ONNX standard: run them, and write the page.

``python benchmarks/onnx_conformance.py [--compilers NAME,...] [--cases TEXT] [--results FILE] [--anew]`` runs what the
file of results lacks, and ``--page-only`` only renders it. ``--output FILE`` is docs/reference/onnx-conformance.md by
default.

A case is put through the ways of the package: its file and its inputs become a workload with samples, the workload is
prepared, and each compiler compiles, saves, loads and runs it. The outputs are compared with those that come with the
case. Children do many cases each; one that crashes or hangs costs its case. ``bare`` is ONNX Runtime by itself, and
``openvino-bare`` OpenVINO: what one of them runs and its adapter does not is told, and for ONNX Runtime the exit code is 1.
torch-compile, which starts a C++ compiler for every model, does what eager execution does, many small cases in one model.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from support.onnx_cases import Attempt, Case, Outcome, cases
from support.onnx_merged import alike, together
from support.onnx_page import Row, lost, page, read, write

COMPILERS = ("identity", "torchscript", "torch-compile", "bare", "onnxruntime", "openvino-bare", "openvino", "tvm")
MERGED = "torch-compile"
"""Starts a C++ compiler for each model: it gets many cases in one."""
ALONE = ("tvm", MERGED)
"""Compilers with a child of their own; TVM's importer is the slowest, and crashes."""
PAGE = Path(__file__).parents[1] / "docs/reference/onnx-conformance.md"
SECONDS = 300.0
"""A case that takes longer hangs."""
CASES_OF_A_CHILD = 150
CASES_OF_A_MODEL = 20


def main() -> int:
    """Run, write, and say whether the adapter for ONNX Runtime loses anything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compilers", default=",".join(COMPILERS))
    parser.add_argument("--cases", default="", help="only those whose name contains this")
    parser.add_argument("--results", type=Path, default=Path(tempfile.gettempdir(), "onnx-conformance.jsonl"))
    parser.add_argument("--anew", action="store_true", help="run the chosen cases again")
    parser.add_argument("--page-only", action="store_true")
    parser.add_argument("--output", type=Path, default=PAGE)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child.split(","), set(sys.stdin.read().split()))
        return 0
    if not options.page_only:
        run(options)
    rows = read(options.results)
    options.output.write_text(page(rows, COMPILERS), encoding="utf-8")
    for row in lost(rows):
        print(f"{row.compiler} runs {row.case} bare, and not here: {row.verdict}: {row.reason}")
    return int(any(row.compiler == "onnxruntime" for row in lost(rows)))


def run(options: argparse.Namespace) -> None:
    """Put every chosen case through every chosen compiler that has not done it."""
    chosen = [case for case in cases() if options.cases in case.name]
    names = options.compilers.split(",")
    together = [name for name in names if name not in ALONE]
    for compilers in [together, *([name] for name in names if name in ALONE)]:
        if not compilers:
            continue
        done = {(row.case, row.compiler) for row in ([] if options.anew else read(options.results))}
        wanted = _done_eagerly(chosen, options.results) if compilers == [MERGED] else chosen
        missing = [case for case in wanted if any((case.name, name) not in done for name in compilers)]
        about = {case.name: case for case in missing}
        for name, compiler, outcome in results(list(about), compilers):
            if (name, compiler) in done:
                continue
            case = about[name]
            write(options.results, Row(name, case.group, case.operators, compiler, outcome.verdict, outcome.reason))
            if outcome.verdict not in ("ok", "not a tensor"):
                print(f"{compiler:14} {name} {outcome.verdict} {outcome.reason[:160]}", flush=True)


def _done_eagerly(chosen: Sequence[Case], results: Path) -> list[Case]:
    """The cases that eager execution does: it starts from the same module, and what that lacks is refused to both."""
    able = {row.case for row in read(results) if row.compiler == "identity" and row.verdict == "ok"}
    return [case for case in chosen if case.name in able]


def results(names: Sequence[str], compilers: Sequence[str]) -> Iterator[tuple[str, str, Outcome]]:
    """What becomes of some cases, from children one after the other."""
    pending = list(names)
    while pending:
        with Child(compilers, pending[:CASES_OF_A_CHILD]) as working:
            for name, compiler, outcome in working.said():
                yield name, compiler, outcome
                if compiler == compilers[-1]:
                    pending.remove(name)
        if working.broke:
            name = working.at[0]
            for compiler in compilers[list(compilers).index(working.at[1]) :]:
                yield name, compiler, Outcome("failed", working.broke)
            pending.remove(name)


class Child:
    """A process that does cases, and tells of each when it begins and ends."""

    def __init__(self, compilers: Sequence[str], names: Sequence[str]) -> None:
        self.at = names[0], compilers[0]
        self.broke: str | None = None
        """Why it ended early."""
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--child", ",".join(compilers)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        assert self._process.stdin is not None
        with self._process.stdin as asked:
            asked.write("\n".join(names))
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def said(self) -> Iterator[tuple[str, str, Outcome]]:
        """Results, until the child ends, crashes or hangs."""
        while True:
            try:
                line = self._lines.get(timeout=SECONDS)
            except queue.Empty:
                self.broke = f"took more than {SECONDS:.0f} s"
                return
            if line is None:
                code = self._process.wait()
                self.broke = f"crashed with signal {-code}" if code < 0 else f"ended with code {code}" if code else None
                return
            found = json.loads(line)
            if "verdict" in found:
                yield found["case"], found["compiler"], Outcome(found["verdict"], found["reason"])
            else:
                self.at = found["case"], found["compiler"]

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


def child(compilers: Sequence[str], names: set[str]) -> None:
    """Do the named cases."""
    # Compilers write to standard output what they like; what the parent reads is another descriptor.
    with os.fdopen(os.dup(1), "w") as parent:
        os.dup2(2, 1)

        def tell(**said: str) -> None:
            print(json.dumps(said), file=parent, flush=True)

        chosen = [case for case in cases() if case.name in names]
        if compilers == [MERGED]:
            _together(chosen, tell)
        else:
            _one_by_one(chosen, compilers, tell)
        parent.flush()
        # Runtimes that crash when they are torn down are not what is asked about.
        os._exit(0)


def _one_by_one(chosen: Sequence[Case], compilers: Sequence[str], tell: Callable[..., None]) -> None:
    for case in chosen:
        with tempfile.TemporaryDirectory(prefix="onnx-") as directory:
            attempt = Attempt(case, Path(directory), ["module", "onnx"])
            for compiler in compilers:
                tell(case=case.name, compiler=compiler)
                tell(case=case.name, compiler=compiler, **asdict(attempt.through(compiler)))


def _together(chosen: Sequence[Case], tell: Callable[..., None]) -> None:
    networks = [[case] for case in chosen if case.group == "light"]
    for group in [*networks, *alike([case for case in chosen if case.group != "light"], CASES_OF_A_MODEL)]:
        with tempfile.TemporaryDirectory(prefix="onnx-") as directory:
            for case, outcome in together(group, Path(directory), MERGED, ["module", "exported"]):
                tell(case=case.name, compiler=MERGED, **(asdict(outcome) if outcome else {}))


if __name__ == "__main__":
    sys.exit(main())
