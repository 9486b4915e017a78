"""Does every kind of tracking server that people have do? A study is recorded there, compared, pulled, verified and served.

``python benchmarks/every_server.py [--servers NAME,...] [--keep DIRECTORY]``, from the root of the repository.

Each kind is started on this machine with what is installed (MariaDB, nginx and OpenStack Swift are Debian's packages
``mariadb-server``, ``nginx``, ``swift-proxy``, ``swift-account``, ``swift-container`` and ``swift-object``; ``pip install boto3 pymysql``);
one that lacks something is skipped with what it lacks. Then the commands of a user run against it, each in a process of its own, with
what a client of such a server has in its environment. Where somebody else may only read, he compares, and is refused in one line when he
records. Nothing secret may appear in what the commands print, nor in what the study leaves on disk. Exit code 1: something failed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import yaml

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # certificates are made as the tests make them

from support.kinds_of_server import KINDS, Served  # noqa: E402
from support.server import QUIET  # noqa: E402
from support.small_study import BATCHES, MODELS, study  # noqa: E402

from mlflow_ngraph_serve.client import infer  # noqa: E402

_SECONDS = 300.0
_ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+")


class StepError(Exception):
    """A command did something else than it should."""


@dataclass
class Client:
    """Somebody who uses a server."""

    served: Served
    folder: Path
    printed: list[str] = field(default_factory=list)

    def run(self, *words: str, codes: tuple[int, ...] = (0,), environment: Mapping[str, str] | None = None) -> str:
        """What ``mlflow-ngraph`` prints for some words.

        Parameters
        ----------
        codes: the exit codes that it may have.
        environment: of another client.
        """
        ended = subprocess.run(
            [sys.executable, "-m", "mlflow_ngraph", *words], capture_output=True, text=True, timeout=_SECONDS, check=False,
            env=self.environment(environment), cwd=self.folder,
        )  # fmt: skip
        self.printed += [ended.stdout, ended.stderr]
        if ended.returncode not in codes:
            raise StepError(
                f"{words[0]} ended with {ended.returncode}: {(ended.stderr or ended.stdout).strip()[-400:]}"
            )
        return ended.stdout or ended.stderr

    def environment(self, given: Mapping[str, str] | None = None) -> dict[str, str]:
        """Of a command of this client, or of another one."""
        paths = os.pathsep.join([str(Path(__file__).parent), str(ROOT), os.environ.get("PYTHONPATH", "")])
        own = {"MLFLOW_TRACKING_URI": self.served.uri, "NGRAPH_HOME": str(self.folder / "home"), "PYTHONPATH": paths}
        cache = {"XDG_CACHE_HOME": str(self.folder / "cache")}
        return {**os.environ, **QUIET, **own, **cache, **(self.served.environment if given is None else given)}


def main() -> int:
    """Try every kind, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", default=",".join(KINDS))
    parser.add_argument("--keep", type=Path, help="a directory in which everything stays")
    options = parser.parse_args()
    failed = skipped = 0
    place = nullcontext(str(options.keep)) if options.keep else tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    with place as kept:
        for name in options.servers.split(","):
            kind = KINDS[name]
            if kind.missing:
                skipped += 1
                print(f"{name}: skipped: {kind.missing} is not here", flush=True)
                continue
            folder = Path(kept, name).resolve()
            folder.mkdir(parents=True)
            began = time.monotonic()
            try:
                with kind.run(folder) as served:  # type: ignore[attr-defined] # a context manager
                    said = used(served, folder)
            except (StepError, subprocess.TimeoutExpired) as error:
                failed += 1
                said = f"FAILED: {error}"
            print(f"{name} ({kind.about}): {said}; {time.monotonic() - began:.0f} s", flush=True)
    print(f"{len(options.servers.split(',')) - failed - skipped} did, {failed} failed, {skipped} skipped")
    return int(failed > 0)


def used(served: Served, folder: Path) -> str:
    """Go all the way on a server; says how far that was."""
    client = Client(served, folder)
    file = folder / "study.yaml"
    file.write_text(yaml.safe_dump(study().model_dump(mode="json")))
    steps: list[Callable[[Client], str]] = [record, compare, promote, pull, serve]
    if served.reader:
        steps.append(read_only)
    told = [step(client) for step in steps]
    leaks = [
        secret for secret in served.secrets for text in (*client.printed, *_left(folder / "home")) if secret in text
    ]
    if leaks:
        raise StepError(f"{len(leaks)} times something secret was printed or kept")
    return ", ".join(told)


def record(client: Client) -> str:
    """Measure the study, and record it while that goes on."""
    said = json.loads(client.run("benchmark", "study.yaml", "--json"))
    if said["unrecorded"] or any(row["verdict"] != "ok" for row in said["rows"]):
        raise StepError(f"benchmark: {said['unrecorded'] or [row['reason'] for row in said['rows']]}")
    return f"recorded {len(said['rows'])} cells"


def compare(client: Client) -> str:
    """Read all cells back."""
    shown = json.loads(client.run("compare", "--json", "--no-cache"))
    expected = 2 * len(MODELS) * len(BATCHES)
    if shown["cells"] != expected:
        raise StepError(f"compare shows {shown['cells']} cells, not {expected}")
    return "compared"


def promote(client: Client) -> str:
    """Let an alias point at an engine."""
    engines = json.loads(client.run("engine", "list", "--json"))["engines"]
    chosen = next(
        engine for engine in engines if engine["compiler"] == "onnxruntime" and "linear" in engine["workload"]
    )
    words = ("engine", "promote", f"models:/{chosen['model_id']}", "--name", "small", "--alias", "champion")
    client.run(*words, "--accept-undecided", "--force", "--json")
    return "promoted"


def pull(client: Client) -> str:
    """Bring the engine by its alias, and verify what came."""
    client.run("engine", "pull", "models:/small@champion", "--to", "pulled", "--json")
    said = json.loads(client.run("engine", "verify", "pulled", "--json"))
    if not said["ok"]:
        raise StepError(f"verify: {said['checks']}")
    return "pulled, verified"


def serve(client: Client) -> str:
    """Serve the alias, and ask for an inference."""
    with _serving(client) as address:
        outputs = infer(address, "small", {"input": np.full((1, 16), 0.5, np.float32)})
    if [array.shape for array in outputs.values()] != [(1, 8)]:
        raise StepError(f"serve answered {outputs}")
    return "served"


def read_only(client: Client) -> str:
    """Somebody who may read compares, and cannot record."""
    shown = json.loads(client.run("compare", "--json", "--no-cache", environment=client.served.reader))
    home = ("--home", str(client.folder / "home-of-a-reader"))
    said = client.run("benchmark", "study.yaml", *home, environment=client.served.reader, codes=(1, 2))
    lines = [line for line in said.strip().splitlines() if line.startswith(("error", "Error"))]
    if not shown["cells"] or len(lines) != 1:
        raise StepError(f"a reader is told: {said[-400:]}")
    return "a reader compares and is refused to record"


@contextmanager
def _serving(client: Client) -> Iterator[str]:
    log = client.folder / "serve.log"
    words = [
        sys.executable,
        "-m",
        "mlflow_ngraph",
        "engine",
        "serve",
        "models:/small@champion",
        "--name",
        "small",
        "--port",
        "0",
    ]
    with log.open("wb") as output:
        running = subprocess.Popen(words, stdout=output, stderr=output, env=client.environment(), cwd=client.folder)
    try:
        deadline = time.monotonic() + _SECONDS
        while not (found := _ADDRESS.search(log.read_text().replace(client.served.uri, ""))) or not _ready(found[0]):
            if running.poll() is not None or time.monotonic() > deadline:
                raise StepError(f"serve did not start: {log.read_text()[-400:]}")
            time.sleep(0.2)
        yield found[0]
    finally:
        running.terminate()
        running.wait(60)
        client.printed.append(log.read_text())


def _ready(address: str) -> bool:
    try:
        urllib.request.urlopen(f"{address}/v2/health/ready", timeout=5).close()  # noqa: S310 - our own server
    except OSError:
        return False
    return True


def _left(home: Path) -> Iterator[str]:
    """The text of all that a study leaves on disk but engines."""
    for path in home.rglob("*"):
        if path.is_file() and path.suffix in {".json", ".jsonl", ".yaml", ".log", ".txt"}:
            yield path.read_text(errors="replace")


if __name__ == "__main__":
    raise SystemExit(main())
