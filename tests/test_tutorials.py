"""The tutorials, each command and program in them, as a reader would type them."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

TUTORIALS = Path(__file__).parents[1] / "docs/tutorials"
PORT = "8080"
"""Stands in the pages."""
_BUSY = {
    "mlflow-ngraph recommend ": "test $? = 3",
    "mlflow-ngraph engine pull --objective ": "mlflow-ngraph engine pull models:/$(mlflow-ngraph engine list --json | python -c "
    '\'import json, sys; print(json.load(sys.stdin)["engines"][0]["model_id"])\') --to engine',
    "mlflow-ngraph engine promote ": "mlflow-ngraph engine promote $ENGINE --name classifier --force",
}
"""What is done instead where other tests keep the machine so busy that nothing can be told."""

_BRIEF = """repetitions: 3
slice_repetitions: 1
warmup: {window: 2, max_seconds: 0.01}
stability: {max_foreign_cpu_percent: 10000, max_spread: 1.0e9, max_drift: 1.0e9}
limits: {reload_seconds: 0, verify_seconds: 0.5}
"""


def script(page: Path, folder: Path) -> Iterator[str]:
    """Write a page's files, and give its commands and programs as lines of a shell."""
    for info, body in re.findall(r"^```([^\n`]*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
        language, _, use = info.partition(" ")
        if use.startswith("file="):
            # Shorter than a reader would have it: what is said of the figures is not tested here.
            (folder / use.removeprefix("file=")).write_text(
                re.sub(r"^repetitions: \d+\n", _BRIEF, body, flags=re.MULTILINE)
            )
        elif (language, use) == ("console", "test"):
            for line in (line.removeprefix("$ ") for line in body.replace("\\\n", "").splitlines()):
                yield line + next((f" || {{ {other}; }}" for verb, other in _BUSY.items() if line.startswith(verb)), "")
        elif (language, use) == ("python", "test"):
            yield f"{shlex.quote(sys.executable)} - <<'END'\n{body}END"


@pytest.mark.skipif(shutil.which("curl") is None, reason="the tutorials ask servers with curl")
@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("compilers")
@pytest.mark.parametrize("pages", [["first-answer", "serve-the-champion"], ["three-phases"]], ids=" ".join)
def test_what_a_tutorial_says_can_be_done(pages: list[str], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    lines = [line for page in pages for line in script(TUTORIALS / f"{page}.md", tmp_path)]
    # Job control, so that the shell's name for the server is that which a terminal has.
    text = "\n".join(["set -e -m", *lines]).replace(PORT, port)
    env = {
        **os.environ,
        "NGRAPH_HOME": str(tmp_path / "home"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    told = subprocess.run(
        ["bash", "-c", text], check=False, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=1100
    )
    assert told.returncode == 0, told.stdout + told.stderr
    assert "Traceback" not in told.stderr
    if "serve-the-champion" in pages:
        assert '"predictions"' in told.stdout


def test_the_release_of_torch_is_that_of_the_package() -> None:
    (release,) = re.findall(
        r'^torch-release = .*"(torch==[^"]*)"', (TUTORIALS.parents[1] / "pyproject.toml").read_text(), re.MULTILINE
    )
    assert f"$ pip install {release}\n" in (TUTORIALS / "first-answer.md").read_text()


def test_each_tutorial_is_tried() -> None:
    assert {path.stem for path in TUTORIALS.glob("*.md")} == {"first-answer", "serve-the-champion", "three-phases"}
