"""How long a person waits for a verb, beside what ``import mlflow`` takes, and whether what was asked before comes at once.

    python benchmarks/verb_speed.py sqlite:////tmp/seeded/mlflow.db --bound 1.3
    python benchmarks/verb_speed.py http://127.0.0.1:5000

Each question is asked in fresh processes: with nothing kept on this machine, and again. The import is timed between them, as
the machine may be slower at one time than at another. ``--cpu`` judges by the CPU seconds of the process, for a machine that
others use, too. A database must not have been written to for two seconds; answers are kept under the state of its file, and
that of a moment ago could be another's. A misspelt study is asked for as well: it is refused before anything heavy is imported.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median

from mlflow_ngraph.tracking.connection import is_server

VERBS = ("compare", "recommend", "results findings", "results history")
KEPT_FROM_SERVERS = ("compare",)
"""Answers from a server are kept under the digests of its tables, which the others do not depend on alone."""
AGAIN_S = 0.5
FIRST_OVER_HTTP_S = 5.0


def seconds(line: list[str], cache: str, expected: tuple[int, ...], *, cpu: bool) -> float:
    """What one fresh process takes."""
    start = time.perf_counter()
    process = subprocess.Popen(
        line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "XDG_CACHE_HOME": cache}
    )
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in expected:
        raise SystemExit(f"{' '.join(line)}: exit code {process.returncode}")
    return usage.ru_utime + usage.ru_stime if cpu else wall


def a_cell(uri: str) -> str:
    """The id of a cell that is ok."""
    from mlflow_ngraph import load_results

    frame = load_results(uri, columns=["cell", "verdict"])
    return str(frame.loc[frame["verdict"] == "ok", "cell"].iloc[0])


def main() -> None:
    """Measure, print, and fail where a bound is not kept."""
    parser = argparse.ArgumentParser(description="Time the verbs that read results.")
    parser.add_argument("uri")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--bound", type=float, default=1.3, help="Of a first answer, as a multiple of `import mlflow`.")
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()
    program = [sys.executable, "-m", "mlflow_ngraph"]
    cell = a_cell(options.uri)
    taken: dict[str, list[float]] = defaultdict(list)
    for _ in range(options.repeat):
        with tempfile.TemporaryDirectory() as cache:
            taken["import mlflow"].append(
                seconds([sys.executable, "-c", "import mlflow"], cache, (0,), cpu=options.cpu)
            )
            for verb in VERBS:
                asked = [*verb.split(), *([cell] if verb.endswith("history") else []), "--tracking-uri", options.uri]
                for name in ("first", "again"):
                    taken[f"{verb} {name}"].append(seconds([*program, *asked], cache, (0, 3), cpu=options.cpu))
            study = Path(cache, "misspelt.yaml")
            study.write_text("workloads: [timm:resnet10t]\ncompilers: [openvno]\n")
            refused = [*program, "benchmark", str(study), "--dry-run"]
            taken["misspelt study"].append(seconds(refused, cache, (2,), cpu=options.cpu))
    found = {name: median(times) for name, times in taken.items()}
    print(json.dumps(found, indent=2))
    served = is_server(options.uri)
    first = FIRST_OVER_HTTP_S if served else options.bound * found["import mlflow"]
    bounds = {f"{verb} first": first for verb in VERBS} | {"misspelt study": AGAIN_S}
    bounds |= {f"{verb} again": AGAIN_S for verb in (KEPT_FROM_SERVERS if served else VERBS)}
    problems = [
        f"{name}: {found[name]:.2f} s, at most {most:.2f} wanted" for name, most in bounds.items() if found[name] > most
    ]
    if problems:
        raise SystemExit("; ".join(problems))


if __name__ == "__main__":
    main()
