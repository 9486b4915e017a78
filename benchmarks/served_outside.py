"""What does a client of a server see, beside the bare engine and beside ``mlflow models serve``?

``python benchmarks/served_outside.py PACKAGE [--clients 1,16,64] [--rounds 5] [--seconds 3]``

``mlflow-ngraph engine serve`` and ``mlflow models serve`` serve the same engine on this machine, and the engine is loaded here as
well. In each round each is asked for the same sample, one after the other, in an order that turns: the bare engine, ours over a kept
connection and over new ones, ours and MLflow's by crowds, as JSON at ``/invocations`` and ours as bytes, too. Time counts at the
client. Ratios are those of a round; their interval is that of the mean of their logarithms, 95 %.

Exit code 1: with one client over a kept connection p50 or p99 is more than 1.5 times that of new connections, p50 is more than
0.5 ms above the bare engine's; ours is behind MLflow's in throughput or p99 with some number of clients; or a request was lost.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import requests
from scipy import stats
from support import records
from support.asking import Asked, ask, post
from support.records import Result
from support.server import free_port

from mlflow_ngraph import load_model
from mlflow_ngraph.engines.package import open_package
from mlflow_ngraph_serve.client import encode

NAME = "outside"
MOST_OVER_NEW, MOST_OVER_ENGINE_MS = 1.5, 0.5
START_S = 180.0


def main() -> int:
    """Measure and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path)
    parser.add_argument("--clients", default="1,16,64")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    records.add_option(parser)
    options = parser.parse_args()
    clients = [int(count) for count in options.clients.split(",")]
    rng = np.random.default_rng(0)
    inputs = open_package(options.package).manifest.spec.inputs
    sample = {spec.name: spec.random(1, rng) for spec in inputs}
    nested = json.dumps({"inputs": {name: array.tolist() for name, array in sample.items()}}).encode()
    as_json = post("/invocations", nested, {"Content-Type": "application/json"})
    as_bytes = post(f"/v2/models/{NAME}/infer", *encode(sample))
    found: dict[str, list[Asked]] = defaultdict(list)
    with ExitStack() as stack:
        ours = stack.enter_context(
            _served([*_cli("mlflow_ngraph"), "engine", "serve", str(options.package)], "--name", NAME)
        )
        mlflow = ["models", "serve", "-m", str(options.package), "--env-manager", "local"]
        theirs = stack.enter_context(_served([*_cli("mlflow"), *mlflow], "--workers", "1"))
        engine = stack.enter_context(load_model(options.package))
        arrays = [sample[spec.name] for spec in inputs]
        turns: dict[str, Callable[[], Asked]] = {
            "engine": lambda: _bare(lambda: engine.run(arrays), options.seconds),
            "new": lambda: ask(ours, as_bytes, 1, options.seconds, kept=False),
            "kept": lambda: ask(ours, as_bytes, 1, options.seconds),
        }
        for count in clients:
            turns |= {
                f"bytes {count}": partial(ask, ours, as_bytes, count, options.seconds),
                f"ours {count}": partial(ask, ours, as_json, count, options.seconds),
                f"MLflow {count}": partial(ask, theirs, as_json, count, options.seconds),
            }
        for _ in range(options.rounds):
            for name, turn in turns.items():
                found[name].append(turn())
                if not found[name][-1].taken:
                    raise SystemExit(f"{name}: no answer in {options.seconds:g} s; take longer with --seconds")
            turns = dict(reversed(turns.items()))
    results = list(_judged(found, clients))
    print("ok" if all(result.met for result in results) else "NOT ok")
    records.keep(options, "served_outside", *results)
    return 0 if all(result.met for result in results) else 1


def _judged(found: dict[str, list[Asked]], clients: list[int]) -> Iterator[Result]:
    print(f"{'':>10} {'answers/s':>10} {'p50 ms':>8} {'p99 ms':>8} {'refused':>8} {'lost':>5}   medians of rounds")
    for name, rounds in found.items():
        throughput = float(np.median([one.throughput for one in rounds]))
        p50, p99 = (float(np.median([one.ms(share) for one in rounds])) for share in (50, 99))
        refused, lost = sum(one.refused for one in rounds), sum(one.lost for one in rounds)
        print(f"{name:>10} {throughput:10.1f} {p50:8.3f} {p99:8.3f} {refused:8} {lost:5}")
    over = float(
        np.median([kept.ms(50) - bare.ms(50) for kept, bare in zip(found["kept"], found["engine"], strict=True)])
    )
    print(f"kept connection over the bare engine, p50: {over:.3f} ms")
    yield records.at_most("above the bare engine", over, MOST_OVER_ENGINE_MS, "ms", digits=3)
    yield records.at_most("requests lost", sum(one.lost for rounds in found.values() for one in rounds), 0)
    for percentile in (50, 99):
        kept, new = ([one.ms(percentile) for one in found[name]] for name in ("kept", "new"))
        value, interval = _ratio(f"kept/new p{percentile}", kept, new)
        name, unit = f"p{percentile} over a kept connection", "times that of a new one"
        yield records.at_most(name, value, MOST_OVER_NEW, unit, digits=3, interval=interval)
    for count in clients:
        ours, theirs = found[f"ours {count}"], found[f"MLflow {count}"]
        label = f"{count} client{'s' if count > 1 else ''}"
        value, interval = _ratio(
            f"answers a second, {label}", [one.throughput for one in ours], [one.throughput for one in theirs]
        )
        name = f"answers a second, {label}"
        yield records.at_least(name, value, 1, "times MLflow's", digits=3, interval=interval)
        value, interval = _ratio(f"p99, {label}", [one.ms(99) for one in ours], [one.ms(99) for one in theirs])
        yield records.at_most(f"p99, {label}", value, 1, "times MLflow's", digits=3, interval=interval)


def _ratio(label: str, above: list[float], below: list[float]) -> tuple[float, tuple[float, float] | None]:
    """Print the mean ratio of rounds, and its interval where there are two rounds."""
    logs = np.log(np.array(above) / np.array(below))
    mean, spread = float(logs.mean()), float(stats.sem(logs)) if len(logs) > 1 else float("nan")
    half = float(stats.t.ppf(0.975, len(logs) - 1)) * spread if len(logs) > 1 else float("nan")
    ratio, low, high = (float(np.exp(value)) for value in (mean, mean - half, mean + half))
    print(f"{label}: {ratio:.3f} [{low:.3f}, {high:.3f}]")
    return ratio, (low, high) if len(logs) > 1 else None


def _bare(call: object, seconds: float) -> Asked:
    asked = Asked(seconds)
    end = time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        call()  # type: ignore[operator]
        asked.taken.append(time.perf_counter() - start)
    return asked


def _cli(module: str) -> list[str]:
    return [sys.executable, "-m", module]


@contextmanager
def _served(command: list[str], *options: str) -> Iterator[int]:
    """The port of a server that has answered."""
    port = free_port()
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen([*command, *options, "--port", str(port)], stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + START_S
            while not _answers(port):
                if server.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise SystemExit(log.read().decode())
                time.sleep(0.2)
            yield port
        finally:
            server.terminate()
            server.wait(60)


def _answers(port: int) -> bool:
    try:
        return requests.get(f"http://127.0.0.1:{port}/ping", timeout=2).ok
    except requests.RequestException:
        return False


if __name__ == "__main__":
    raise SystemExit(main())
