"""Whether the views and the page work in a browser with each version of MLflow that is supported.

    python benchmarks/ui_versions.py --versions 3.15 3.16 3.17

For each version an environment is made with uv, with the newest release of that version, this package and what its tests
of the user interface need. Those tests run in it: they start that MLflow's server, record studies on it, and look at its
pages in the browser that is installed here. Prints a line of JSON a version; fails where a test does.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TESTS = ("tests/ui", "tests/tracking/test_views.py")
NEEDED = ("pytest", "pytest-timeout", "playwright", "Flask-WTF")
"""What the tests need besides this package."""
LIMIT_S = 1800


def environment(version: str, directory: Path) -> Path:
    """The interpreter of an environment with a version of MLflow."""
    target = directory / f"mlflow-{version}"
    uv = (sys.executable, "-m", "uv")
    python = target / "bin" / "python"
    subprocess.run([*uv, "venv", "--quiet", "--python", sys.executable, str(target)], check=True)
    wanted = [f"mlflow=={version}.*", *NEEDED]
    subprocess.run(
        [*uv, "pip", "install", "--quiet", "--python", str(python), "--editable", str(ROOT), *wanted], check=True
    )
    return python


def judge(version: str, directory: Path) -> dict[str, Any]:
    """What the tests say of a version."""
    python = environment(version, directory)
    show = "import importlib.metadata as m; print(m.version('mlflow'))"
    release = subprocess.run([str(python), "-c", show], check=True, capture_output=True, text=True).stdout.strip()
    done = subprocess.run(
        [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS],
        cwd=ROOT,
        env={**os.environ, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    counted = {name: int(count) for count, name in re.findall(r"(\d+) (passed|failed|skipped|errors?)\b", done.stdout)}
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return {"version": version, "release": release, "exit_code": done.returncode, **counted, "not_passed": failed}


def main() -> None:
    """Judge the versions that the command line names."""
    parser = argparse.ArgumentParser(description="Test the views and the page with several versions of MLflow.")
    parser.add_argument("--versions", nargs="+", default=["3.15", "3.16", "3.17"], help="major and minor numbers")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ngraph-ui-") as directory:
        found = []
        for version in options.versions:
            found.append(judge(version, Path(directory)))
            print(json.dumps(found[-1]), flush=True)
    broken = [one["release"] for one in found if one["exit_code"] or one.get("skipped")]
    if broken:
        raise SystemExit(f"not everything passed with MLflow {', '.join(broken)}")


if __name__ == "__main__":
    main()
