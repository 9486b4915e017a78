"""Whether what a shell has set is part of a figure: thirty shells, each with one variable at its worst.

``python benchmarks/thirty_shells.py [--shells 30] [--attempts 3] [--every 1] [--threads 2] [--home DIR]``

A small study (PyTorch eager, ONNX Runtime, OpenVINO) runs in each shell, and before and after it in one with nothing set. A
shell holds if the figures name its variable; else if

- the processes that measure have the environment that they have in the clean shell, read from ``/proc`` while they live; and
- the speed-ups differ from those of the clean shell by no more than the intervals of both, and what a process is worth
  (5 %: all rounds of this study are in one). On a busy machine chance exceeds that now and then: such a shell is tried again.

With ``--inspect`` nothing is measured: of each shell a process is started as those that measure are, and says what it has.
That is for machines whose times say nothing.

Exit code 1 if any shell does not hold.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from support import records

STUDY = """
name: shells
workloads: [{ref: "torch:shell_model:make", options: {inputs: [{shape: [batch, 3, 32, 32]}]}}]
compilers: [identity, onnxruntime, openvino]
batch_sizes: [1]
repetitions: 60
slice_repetitions: 10
threads: THREADS
warmup: {window: 3, max_seconds: 0.5}
limits: {reload_seconds: 0}
"""
LIBRARY = "preloaded"
"""Stands for a library of this machine."""
SHELLS = {
    "ATEN_CPU_CAPABILITY": "default",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "DNNL_MAX_CPU_ISA": "SSE41",
    "ONEDNN_DEFAULT_FPMATH_MODE": "BF16",
    "ONEDNN_VERBOSE": "all",
    "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    "MKL_NUM_THREADS": "1",
    "MKL_VERBOSE": "1",
    "OPENBLAS_CORETYPE": "Prescott",
    "OMP_NUM_THREADS": "16",
    "OMP_PLACES": "{0}",
    "OMP_WAIT_POLICY": "passive",
    "GOMP_CPU_AFFINITY": "0",
    "GOMP_SPINCOUNT": "infinite",
    "KMP_BLOCKTIME": "infinite",
    "THP_MEM_ALLOC_ENABLE": "1",
    "LRU_CACHE_CAPACITY": "1",
    "TORCH_LOGS": "+all",
    "TORCHINDUCTOR_MAX_AUTOTUNE": "1",
    "PYTORCH_JIT": "0",
    "MALLOC_MMAP_THRESHOLD_": "4096",
    "MALLOC_PERTURB_": "165",
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-AVX512F,-ERMS,-FSRM",
    "NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3",
    "ORT_LOAD_CONFIG_FROM_MODEL": "1",
    "OV_CPU_DEBUG_LOG": "-",
    "PYTHONTRACEMALLOC": "25",
    "PYTHONMALLOC": "debug",
    "LD_PRELOAD": LIBRARY,
    "LD_LIBRARY_PATH": "/usr/lib",
}
"""The worst value of each variable."""
KEPT = ("PATH", "HOME", "LANG", "TMPDIR", "XDG_CACHE_HOME", "NGRAPH_LOCK_DIR")
"""Of the shell that this is started in."""
OF_A_RUN = ("TMPDIR", "TORCHINDUCTOR_CACHE_DIR")
"""Folders of a study, which no two have alike."""
A_PROCESS = 0.05
LOOK_EVERY_S = 0.2
HERE = Path(__file__).parent
STARTS_A_CHILD = """
import json, subprocess, sys
from pathlib import Path
from mlflow_ngraph.processes import environment

says = "import json, os; print(json.dumps(dict(os.environ)))"
env = environment.of_threads(2, Path("scratch"))
child = subprocess.run([sys.executable, "-c", says], env=env, capture_output=True, check=True)
print(json.dumps({"child": json.loads(child.stdout), "told": environment.recorded_variables()}))
"""


@dataclass(frozen=True)
class Ran:
    """A study in a shell."""

    rows: dict[str, dict[str, Any]]
    """By compiler."""
    environments: frozenset[frozenset[tuple[str, str]]]
    """Of the processes that computed."""
    seconds: float

    def speedups(self) -> dict[str, tuple[float, float]]:
        """Of each compiler the logarithm of its speed-up, and how far its interval reaches."""
        found = {}
        for compiler, row in self.rows.items():
            if compiler != "identity":
                low, high = map(math.log, row["speedup_ci"])
                found[compiler] = math.log(row["speedup"]), (high - low) / 2
        return found


def main() -> int:
    """Run every shell between clean ones."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shells", type=int, default=len(SHELLS), help="so many of them")
    parser.add_argument("--attempts", type=int, default=3)
    parser.add_argument("--every", type=int, default=1, help="a clean shell after so many others")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--inspect", action="store_true", help="measure nothing")
    parser.add_argument("--home", type=Path, help="where engines are kept; a new folder by default")
    records.add_option(parser)
    options = parser.parse_args()
    if options.inspect:
        return inspect(list(SHELLS.items())[: options.shells], options)
    with tempfile.TemporaryDirectory() as temporary:
        home = options.home or Path(temporary)
        study = Path(temporary) / "shells.yaml"
        study.write_text(STUDY.replace("THREADS", str(options.threads)), encoding="utf-8")
        run(study, home, {})  # builds the engines
        before, held = run(study, home, {}), 0
        after = before
        for place, (name, value) in enumerate(list(SHELLS.items())[: options.shells]):
            attempt, holds = 0, False
            while not holds and attempt < options.attempts:
                attempt += 1
                shell = run(study, home, environment_of(name, value))
                if place % options.every == 0 or attempt > 1:
                    before, after = after, run(study, home, {})
                holds, said = judged(name, shell, before, after)
            held += holds
            tried = f", attempt {attempt}" if attempt > 1 else ""
            print(f"{'holds' if holds else 'FAILS'}  {name:<28} {said} ({shell.seconds:.0f} s{tried})", flush=True)
    print(f"{held} of {options.shells} shells hold")
    _keep(options, "thirty_shells_measured", held)
    return 0 if held == options.shells else 1


def inspect(shells: list[tuple[str, str]], options: argparse.Namespace) -> int:
    """Compare what processes that measure would have in each shell."""
    clean, held = started({}), 0
    for name, value in shells:
        found = started(environment_of(name, value))
        differs = sorted(set(found["child"].items()) ^ set(clean["child"].items()))
        holds = name in found["told"] or not differs
        held += holds
        said = (
            "the figures name it"
            if name in found["told"]
            else f"differs: {differs}"
            if differs
            else "as in the clean shell"
        )
        print(f"{'holds' if holds else 'FAILS'}  {name:<28} {said}", flush=True)
    print(f"{held} of {len(shells)} shells hold")
    _keep(options, "thirty_shells", held)
    return 0 if held == len(shells) else 1


def _keep(options: argparse.Namespace, name: str, held: int) -> None:
    records.keep(options, name, records.at_least("shells that hold", held, options.shells, f"of {options.shells}"))


def started(shell: dict[str, str]) -> Any:
    """What a process has that is started in a shell as those that measure are, and what figures would name."""
    command = [sys.executable, "-c", STARTS_A_CHILD]
    done = subprocess.run(command, env={**clean_shell(), **shell}, capture_output=True, check=True)
    return json.loads(done.stdout)


def environment_of(name: str, value: str) -> dict[str, str]:
    """What a shell has set."""
    return {name: preloadable() if value == LIBRARY else value}


def clean_shell() -> dict[str, str]:
    """What a shell with nothing set has."""
    places = os.pathsep.join([str(HERE.parent), str(HERE / "support")])
    return {**{name: os.environ[name] for name in KEPT if name in os.environ}, "PYTHONPATH": places}


def run(study: Path, home: Path, shell: dict[str, str]) -> Ran:
    """Run the study in a shell, and look at its processes meanwhile."""
    command = [sys.executable, "-m", "mlflow_ngraph", "benchmark", str(study), "--home", str(home)]
    started = time.monotonic()
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [*command, "--offline", "--fresh", "--json"],
            env={**clean_shell(), **shell},
            stdout=said,
            stderr=errors,
        )
        environments: set[frozenset[tuple[str, str]]] = set()
        while process.poll() is None:
            environments.update(working(process.pid))
            time.sleep(LOOK_EVERY_S)
        seconds = time.monotonic() - started
        said.seek(0)
        errors.seek(0)
        if process.returncode:
            raise SystemExit(
                f"the study in shell {shell} ended with {process.returncode}: {errors.read().decode()[-2000:]}"
            )
        rows = {row["compiler"]: row for row in json.loads(said.read())["rows"]}
    return Ran(rows, frozenset(environments), seconds)


def working(pid: int) -> Iterator[frozenset[tuple[str, str]]]:
    """The environments of a study's processes that load engines."""
    try:
        for child in psutil.Process(pid).children(recursive=True):
            # One that has just ended has no environment any more.
            if "mlflow_ngraph.execute.worker" in child.cmdline() and (found := child.environ()):
                yield frozenset((name, value) for name, value in found.items() if name not in OF_A_RUN)
    except psutil.Error:  # it has just ended
        return


def judged(name: str, shell: Ran, before: Ran, after: Ran) -> tuple[bool, str]:
    """Whether a shell holds, and what was seen."""
    if all(f"{name}=" in row["variables"] for row in shell.rows.values()):
        return True, "the figures name it"
    known = before.environments | after.environments
    others = [environment for environment in shell.environments if environment not in known]
    if others:
        return False, f"processes differ: {sorted(set().union(*others) ^ set(next(iter(known))))[:4]}"
    holds, said = True, []
    neighbours = [before.speedups(), after.speedups()]
    for compiler, (log, reach) in shell.speedups().items():
        logs, reaches = zip(*(clean[compiler] for clean in neighbours), strict=True)
        middle = sum(logs) / len(logs)
        allowed = math.hypot(reach, max(reaches), logs[0] - middle, A_PROCESS)
        holds = holds and abs(log - middle) <= allowed
        change = f"{100 * math.expm1(log - middle):+.1f} %, within {100 * allowed:.1f}"
        said.append(f"{compiler} {math.exp(log):.2f} ({change})")
    return holds, f"{len(shell.environments)} environments as in the clean shell; {', '.join(said)}"


def preloadable() -> str:
    """A library that every program of this machine can have."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return next(line.split()[-1] for line in maps if "/libm.so" in line or "/libm-" in line)


if __name__ == "__main__":
    sys.exit(main())
