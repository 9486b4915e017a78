"""Files that are larger than they may be: where do downloads stop?

    python benchmarks/endless_downloads.py

A server sends files without an end, with and without saying how long they are; directories have files of 3 GB, which take no space; MLflow's
client fetches such a file. Each door asks for them: manifest, signature, the files of an engine, one and many, a whole package, tables of runs. What
lies on disk is looked at all the time. Exit code 1: a door took more than 1 MB beyond its bound, took the file, or hung.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from support import records
from support.answers import answer

ENDLESS, MEGABYTE = 3 << 30, 1 << 20
ENGINE_BYTES = 5 * MEGABYTE
FILES = [f"engine/{name}.bin" for name in "abcdefgh"]
DIGEST = "0" * 64


def main() -> int:
    """Knock at each door, and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    records.add_option(parser)
    options = parser.parse_args()
    from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository

    from mlflow_ngraph.tracking import artifact_stores

    wrong = []
    with tempfile.TemporaryDirectory(prefix="ngraph-endless-") as place, served() as address:
        root = Path(place)
        stored = sparse(root / "stored")
        sources = {
            "server that says sizes": (f"{address}/sized", address),
            "server that says none": (f"{address}/endless", address),
            "directory": (stored.as_uri(), "sqlite:///none"),
        }
        store = artifact_stores.MlflowStore(LocalArtifactRepository(str(stored)), root, "sqlite:///none")
        for source, (location, uri) in sources.items():
            for door, (bound, call) in doors(location, uri).items():
                wrong.append(tried(f"{door} from a {source}", bound, call, root / "here"))
        whole = lambda directory: fetched(store, directory)  # noqa: E731
        wrong.append(tried("manifest from a store that MLflow reads", 16 * MEGABYTE, whole, root / "here"))
    count = len(wrong)
    good = records.at_least("refused within 1 MB of their bound", count - sum(wrong), count, f"of {count}")
    records.keep(options, "endless_downloads", good)
    return int(any(wrong))


def doors(location: str, uri: str) -> dict[str, tuple[int, Callable[[Path], object]]]:
    """What may be downloaded at most, and a call that downloads it into a directory."""
    from mlflow_ngraph.engines import signing
    from mlflow_ngraph.engines.manifest import MAX_BYTES, Manifest
    from mlflow_ngraph.tracking import artifact_stores, download, signature_files

    remote = download.Remote(uri, location, "m-1", None, DIGEST, signed=True)
    # Its other fields are of no account before the files are there.
    manifest = Manifest.model_construct(  # type: ignore[call-arg]
        size_bytes=ENGINE_BYTES, files=dict.fromkeys([*FILES, "MLmodel"], DIGEST)
    )

    def files(names: list[str]) -> Callable[[Path], object]:
        return lambda directory: download.files(remote, manifest, names, directory)

    return {
        "manifest": (MAX_BYTES, lambda directory: download.manifest(remote)),
        "signature": (signing.MAX_BYTES, lambda directory: signature_files.fetch(remote)),
        "file of an engine": (ENGINE_BYTES, files(FILES[:1])),
        "files of an engine": (ENGINE_BYTES, files(FILES)),
        "package": (ENGINE_BYTES + 32 * MEGABYTE, files([*FILES, "MLmodel"])),
        "table of a run": (
            artifact_stores.MOST_OF_RUN,
            lambda directory: artifact_stores.run_file(location, "results.parquet", uri),
        ),
    }


def fetched(store: object, directory: Path) -> None:
    """Fetch a manifest through MLflow."""
    from mlflow_ngraph.engines.manifest import FILE, MAX_BYTES
    from mlflow_ngraph.tracking import transfer

    directory.mkdir()
    transfer.content(store, FILE, directory / FILE, FILE, MAX_BYTES)  # type: ignore[arg-type]


def tried(name: str, bound: int, call: Callable[[Path], object], directory: Path) -> bool:
    """True if a door took more than it may."""
    tempfile.tempdir = str(directory.with_name("temporary"))
    Path(tempfile.tempdir).mkdir(exist_ok=True)
    with watched([directory, Path(tempfile.tempdir)]) as most:
        found = answer(lambda: call(directory), 120)
    tempfile.tempdir = None
    wrong = found.kind != "refused" or most[0] > bound + MEGABYTE
    took = f"{most[0] / MEGABYTE:.1f} of at most {bound / MEGABYTE:g} MB"
    print(f"{'WRONG' if wrong else 'ok':5} {name}: {took}, {found.kind}: {found.said[-90:]}", flush=True)
    return wrong


@contextmanager
def watched(folders: list[Path]) -> Iterator[list[int]]:
    """The most bytes that lay in folders at a time."""
    most, end = [0], threading.Event()

    def look() -> None:
        while not end.wait(0.002):
            size = 0
            for folder in folders:
                for path, _, names in os.walk(folder):
                    size += sum(
                        os.lstat(f"{path}/{name}").st_size for name in names if os.path.lexists(f"{path}/{name}")
                    )
            most[0] = max(most[0], size)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield most
    finally:
        end.set()
        thread.join()
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


def sparse(folder: Path) -> Path:
    """A directory whose files are large and take no space."""
    for name in (*FILES, "MLmodel", "manifest.json", "manifest.json.sig", "results.parquet"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with (folder / name).open("wb") as file:
            file.truncate(ENDLESS)
    return folder


@contextmanager
def served() -> Iterator[str]:
    """Address of a server whose files have no end."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            if self.path.startswith("/sized"):
                self.send_header("Content-Length", str(ENDLESS))
            self.end_headers()
            try:
                while True:
                    self.wfile.write(bytes(MEGABYTE))
            except OSError:
                pass

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()


if __name__ == "__main__":
    sys.exit(main())
