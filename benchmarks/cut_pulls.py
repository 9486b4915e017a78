"""A pull of 200 MB whose connection is cut, at places all over it: is there ever half an engine, and does it go on?

    python benchmarks/cut_pulls.py [--cuts 20]

A model of plain matrix products is measured and logged to a tracking server that this script starts, behind a proxy that
cuts the connection after so many bytes. Every pull must fail without a trace under the engine's name; the next call must
complete it without asking again for what was there, check all digests, and run the probe. Exit code 1: something was not so.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from support.large_engine import logged
from support.server import QUIET, tracking_server

sys.path.insert(0, str(Path(__file__).parents[1]))  # the proxy that cuts is one of the tests' tools

from tests.support.cutting import CuttingProxy


def main() -> int:
    """Cut, and print a line for each place."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuts", type=int, default=20)
    options = parser.parse_args()
    os.environ.update(QUIET)
    # Without another attempt of MLflow's client, which would wait minutes for a server that stays away.
    os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = "0"
    failed = 0
    with tempfile.TemporaryDirectory(prefix="ngraph-cut-pulls-") as directory:
        home = Path(directory)
        with tracking_server(home) as uri, CuttingProxy(uri) as proxy:
            source = logged(home, uri)
            import mlflow_ngraph

            package = mlflow_ngraph.pull(source, home / "whole", tracking_uri=uri).package
            sizes = [path.stat().st_size for path in package.directory.rglob("*") if path.is_file()]
            total = sum(sizes)
            print(f"{total / 1e6:.0f} MB in {len(sizes)} files", flush=True)
            for number in range(options.cuts):
                problem = _cut(
                    proxy, source, home / f"engine-{number}", int(total * (number + 0.5) / options.cuts), total
                )
                failed += bool(problem)
                print(f"  {problem}" if problem else "  ok", flush=True)
    print(
        f"{options.cuts - failed} of {options.cuts} pulls left nothing half done, and were completed by the next call"
    )
    return int(failed > 0)


def _cut(proxy: CuttingProxy, source: str, target: Path, after: int, total: int) -> str:
    """Pull with a cut after so many bytes, and again without; returns what was wrong, or nothing."""
    import mlflow_ngraph
    from mlflow_ngraph.errors import NGraphError

    proxy.arm(after)
    try:
        mlflow_ngraph.pull(source, target, tracking_uri=proxy.uri)
        return "the pull did not fail"
    except NGraphError as error:
        said = str(error)
    if target.exists():
        return "there is an engine under the name of one that was not pulled"
    ground = target.with_name(f".{target.name}.pull")
    kept = sum(path.stat().st_size for path in (ground / "package").rglob("*") if path.is_file())
    proxy.arm(None)
    start = time.perf_counter()
    engine = mlflow_ngraph.pull(source, target, tracking_uri=proxy.uri)
    seconds = time.perf_counter() - start
    came = sum(one.sent for one in proxy.files())
    print(
        f"cut after {after / 1e6:.1f} MB ({said}): {kept / 1e6:.1f} MB kept, {came / 1e6:.1f} MB in {seconds:.1f} s",
        end="",
    )
    if engine.state != "pulled" or ground.exists():
        return "the second pull did not end well"
    return f"{kept} of {total} bytes were there, and {came} came again" if came > total - kept else ""


if __name__ == "__main__":
    raise SystemExit(main())
