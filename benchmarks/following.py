"""Does a device that follows an alias have its champion in time, and does it go back from engines that are bad?

    python benchmarks/following.py [--bad 20] [--moves 3] [--every 5s] [--watch-for 60s]

A tracking server is started, a model is measured, and ``mlflow-ngraph fleet follow models:/NAME@ALIAS --serve`` runs in a
process of its own. A client asks for inferences all the while, each over a new connection. The alias is moved to good engines,
and to bad ones of five kinds: with wrong outputs, for another machine, with a file that was altered on the server, crashing on
load, and crashing while they serve. A line for each says how long it took from setting the alias, and the longest time from one
answer to the next meanwhile. Exit code 1: a champion took more than 60 s, a bad engine was not refused, an answer was wrong,
or a request was lost that was not sent between a bad engine's move and the way back from it.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from support.compilers import registered
from support.server import QUIET, tracking_server

sys.path.insert(0, str(Path(__file__).parents[1]))  # planting and asking are tools of the tests

from tests.support.following import Client, Following, following
from tests.support.planted import Plant, Registry, replaying

IN_TIME_S = 60.0
KINDS: tuple[Plant, ...] = ("outputs", "machine", "file", "load", "later")
COMPILERS = ("onnxruntime", "openvino")


@dataclass
class Outcome:
    """What became of a move of the alias."""

    kind: Plant
    version: str
    seconds: float
    """From setting the alias until it was decided."""
    gap_s: float
    """The longest time without an answer meanwhile."""
    lost: int
    """Requests."""
    said: str
    """The line that tells of it."""
    allowed: tuple[float, float]
    """When a request may be lost: from a move to a bad engine to the way back."""


def main() -> int:
    """Move the alias, and print a line for each move."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bad", type=int, default=20)
    parser.add_argument("--moves", type=int, default=3)
    parser.add_argument("--every", default="5s")
    parser.add_argument("--watch-for", default="60s")
    options = parser.parse_args()
    os.environ.update(QUIET)
    with (
        tempfile.TemporaryDirectory(prefix="ngraph-following-") as directory,
        registered("fake", "mlflow_ngraph_testing.fake:FakeCompiler"),
    ):
        home = Path(directory)
        with tracking_server(home, workers=1) as uri:
            packages = _measured(home, uri)
            packages["fake"] = replaying(packages["onnxruntime"], home / "fake")
            registry = Registry(uri, packages["fake"], home / "changed", home / "artifacts")
            outcomes, client = _followed(registry, packages, home, options)
    return _report(outcomes, client)


def _measured(home: Path, uri: str) -> dict[str, Path]:
    """Packages of good engines, by compilers."""
    from mlflow import MlflowClient

    from mlflow_ngraph.runner import run_study
    from mlflow_ngraph.study import parse
    from mlflow_ngraph.tracking import download
    from mlflow_ngraph.tracking.schema import Tag

    study = parse(
        {
            "name": "following", "workloads": ["block:mha?width=64"], "compilers": list(COMPILERS), "batch_sizes": [1, 4],
            "repetitions": 4, "slice_repetitions": 2, "warmup": {"window": 2, "max_seconds": 0.2},
            "stability": {"max_foreign_cpu_percent": 10000, "max_spread": 1e9, "max_drift": 1e9},
        }
    )  # fmt: skip
    outcome = run_study(study, home=home, tracking_uri=uri, experiment="following")
    if outcome.exit_code or outcome.unrecorded:
        raise SystemExit(f"the study did not end well: {outcome.unrecorded or outcome.exit_code}")
    client = MlflowClient(uri)
    models = client.search_logged_models([client.get_experiment_by_name("following").experiment_id])
    packages = {}
    for model in models:
        name = model.tags[Tag.COMPILER]
        if name in COMPILERS:
            packages[name] = home / "packages" / name
            download.pull(download.locate(f"models:/{model.model_id}", uri), packages[name])
    return packages


def _followed(
    registry: Registry, packages: dict[str, Path], home: Path, options: argparse.Namespace
) -> tuple[list[Outcome], Client]:
    good = [packages[COMPILERS[(1 + number) % 2]] for number in range(options.moves)]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    how = ("--serve", "--to", str(home / "kept"), "--port", str(port), "--every", options.every)
    outcomes: list[Outcome] = []
    with following(registry.source, registry.uri, home / "log", *how, "--watch-for", options.watch_for) as follower:
        first = registry.register(package=packages["onnxruntime"])
        registry.move(first)
        follower.said(f"moved: version {first} serves")
        follower.said(f"version {first} has served")
        with Client(f"http://127.0.0.1:{port}/v2/models/{registry.name}/infer", packages["fake"]).asking() as client:
            for package in good:
                version = registry.register(package=package)
                outcomes.append(_moved(follower, client, registry, "good", version))
                follower.said(f"version {version} has served")
            for number in range(options.bad):
                kind = KINDS[number % len(KINDS)]
                outcomes.append(_moved(follower, client, registry, kind, registry.register(kind)))
            time.sleep(1)
    return outcomes, client


def _moved(follower: Following, client: Client, registry: Registry, kind: Plant, version: str) -> Outcome:
    """Let the alias point at a version, and wait for what becomes of it."""
    lines = len(follower.lines)
    expected = {"good": f"moved: version {version} serves", "later": f"version {version} is refused: "}
    start = time.monotonic()
    registry.move(version)
    end = follower.said(expected.get(kind, f"refused: version {version}: "), lines)
    from_s = start
    if kind == "later":
        from_s = follower.said(f"moved: version {version} serves", lines)
    time.sleep(0.5)  # for answers that were on their way
    said = next(line for _, line in follower.lines[lines:] if expected.get(kind, "refused: ") in line)
    lost = sum(start <= sent <= end for sent, _, _ in client.lost)
    allowed = (from_s, end) if kind == "later" else (0.0, 0.0)
    outcome = Outcome(kind, version, end - start, client.longest_gap_s(start, end + 0.5), lost, said, allowed)
    print(
        f"{kind:8} version {version:>3}: {outcome.seconds:5.1f} s, longest time without an answer {outcome.gap_s:.3f} s, "
        f"{lost} requests lost: {said.partition(': ')[2][:150]}",
        flush=True,
    )
    return outcome


def _report(outcomes: list[Outcome], client: Client) -> int:
    moves = [outcome for outcome in outcomes if outcome.kind == "good"]
    bad = [outcome for outcome in outcomes if outcome.kind != "good"]
    late = [outcome for outcome in moves if outcome.seconds > IN_TIME_S]
    spans = [outcome.allowed for outcome in outcomes]
    # A request is sent some time before the process that takes it goes wrong.
    elsewhere = [one for one in client.lost if not any(start - 1 <= one[0] <= end + 1 for start, end in spans)]
    print(f"{len(moves)} champions served, the slowest after {max(one.seconds for one in moves):.1f} s")
    print(f"{len(bad)} bad engines, {len(bad)} refused or taken back")
    print(
        f"{len(client.answered)} requests answered, {client.wrong} wrongly, {len(client.lost)} lost, of which {len(elsewhere)} "
        f"while nothing bad served; longest time without an answer {client.longest_gap_s():.3f} s"
    )
    return int(bool(late or elsewhere or client.wrong))


if __name__ == "__main__":
    raise SystemExit(main())
