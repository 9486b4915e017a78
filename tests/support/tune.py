"""Tunes a prepared model with TVM in this process: ``python -m tests.support.tune MATERIALS ENGINE WORK FLAGS``.

Prints a line with the flags in force and the seconds of each stage. It is a program, so that tests can kill it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from mlflow_ngraph.compilers.base import Target, Workbench
from mlflow_ngraph.compilers.registry import create
from mlflow_ngraph.workloads.materials import Source


def main() -> None:
    sys.modules["torch"] = None  # type: ignore[assignment]
    materials, engine, work, flags = sys.argv[1:]
    bench = Workbench(Path(work), lambda text: None)
    Path(engine).mkdir(parents=True)
    build = create("tvm", json.loads(flags)).compile(
        Source(Path(materials)), [3], Target(threads=2), Path(engine), bench
    )
    sys.stdout.write(json.dumps({"flags": dict(build.flags), "seconds": bench.seconds}) + "\n")


if __name__ == "__main__":
    main()
