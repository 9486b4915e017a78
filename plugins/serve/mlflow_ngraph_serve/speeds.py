"""Speeds of an engine by batch size, from its study or timed now, and the time of a request outside the engine.

What a study has measured counts where the verdict is ``ok``, one inference was in flight, as here, and the machine is an
equal one.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from mlflow_ngraph.text import rounded
from mlflow_ngraph_serve.planning import Speed

if TYPE_CHECKING:
    from mlflow_ngraph.engines.local_engine import LoadedEngine
    from mlflow_ngraph.engines.manifest import Figures, Manifest
    from mlflow_ngraph_serve.protocol import Interface

LOOK_S = 1.0
"""Duration of timing one batch size."""
LOOK_CALLS = 100
"""At most."""
CONNECTED_S = 10.0
"""Timeout for an answer of the web server."""
_METRICS = ("throughput", "latency_p50_ms", "latency_p99_ms")


def recorded(manifest: Manifest, machine: str | None = None) -> tuple[dict[int, Speed], str]:
    """Speeds of the engine's study, and the reason where they do not apply here.

    Parameters
    ----------
    machine : str | None
        The digest of this machine's hardware; None accepts figures of any machine.
    """
    study = f"study {manifest.origin.study!r}"
    if manifest.spec.target.mode != "sync":
        return {}, f"{study} had several requests in flight"
    if machine is not None and manifest.origin.fingerprint.get("digest") != machine:
        return {}, f"{study} ran on other hardware"
    speeds = {figures.batch: _speed(figures) for figures in manifest.figures if _usable(figures)}
    return speeds, f"{study} has nothing that is ok" if not speeds else ""


def known(engine: LoadedEngine, machine: str) -> tuple[dict[int, Speed], str]:
    """The speed at every batch size of a warm engine, and a line about their source."""
    measured, problem = recorded(engine.manifest, machine)
    lacking = [size for size in engine.batch_sizes if size not in measured]
    speeds = {size: measured[size] if size in measured else look(engine, size) for size in engine.batch_sizes}
    study = f"study {engine.manifest.origin.study!r}"
    noisy = [str(figures.batch) for figures in engine.manifest.figures if figures.noise and figures.batch in measured]
    if noisy:
        study += f" (batch size {', '.join(noisy)} on a machine that was not quiet: a latency bound may not hold)"
    if not lacking:
        return speeds, f"as measured by {study}"
    return speeds, f"timed now for batch size {', '.join(map(str, lacking))}: {problem or f'not ok in {study}'}"


def look(engine: LoadedEngine, batch: int, seconds: float = LOOK_S) -> Speed:
    """Time an engine on zeros for some seconds."""
    zeros = [np.zeros(spec.resolve(batch), spec.dtype) for spec in engine.inputs]
    taken: list[float] = []
    while not taken or (sum(taken) < seconds and len(taken) < LOOK_CALLS):
        start = time.perf_counter()
        engine.run(zeros, batching="exact")
        taken.append(time.perf_counter() - start)
    # Of so few calls the slowest stands for the 99th percentile.
    return Speed(batch / float(np.mean(taken)), float(np.median(taken)), max(taken))


def outside(where: tuple[str, int], interface: Interface) -> float:
    """Seconds that a request costs outside the engine: in the web server, and for its tensors to be read and written.

    Parameters
    ----------
    where : tuple[str, int]
        Host and port of the web server, which runs in another thread.
    """
    head, size = interface.zeros()
    body, length = head.encode() + bytes(size), str(len(head.encode()))
    outputs = {name: np.zeros(spec.resolve(1), spec.dtype) for name, spec in interface.outputs.items()}
    taken: list[float] = []
    with socket.create_connection(where, CONNECTED_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while not taken or (sum(taken) < LOOK_S and len(taken) < LOOK_CALLS):
            start = time.perf_counter()
            connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            if not connection.recv(1 << 16):
                break
            interface.write(interface.read(body, length), outputs)
            taken.append(time.perf_counter() - start)
    return float(np.median(taken)) if taken else 0.0


def shown(speeds: Mapping[int, Speed]) -> str:
    """All speeds in a line."""
    return "; ".join(
        f"batch {size}: {rounded(speed.throughput)} samples/s, p99 {rounded(1000 * speed.p99_s)} ms"
        for size, speed in sorted(speeds.items())
    )


def _usable(figures: Figures) -> bool:
    return figures.verdict == "ok" and all(figures.metrics.get(name, 0.0) > 0 for name in _METRICS)


def _speed(figures: Figures) -> Speed:
    throughput, p50, p99 = (figures.metrics[name] for name in _METRICS)
    return Speed(throughput, p50 / 1000, p99 / 1000)
