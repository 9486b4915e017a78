"""Packages, the cache of engines, archives and manifests that were spoiled: is each refused before anything of it is loaded?

    python benchmarks/corrupted_packages.py [--seed 1] [--verbose]

A small real study gives an engine package, a cache of engines, an archive, and a tracking server. Copies of them are spoiled: bytes
flipped, files cut off, lengthened, removed, exchanged, made links, pipes and folders; names that lead out or that no
disk or terminal takes; documents with keys that stand twice, sizes and digests that lie, numbers without an end, whose own digest is
made to fit again; arrays that unfold; members of archives that are links, or hide behind others. Each must be refused in
one line by the package's own kind of error, without a file written where it would have gone, without anything of it loaded:
the interpreter's audit says what is imported, unpickled, opened as a library or run, and adapters say when they are asked. Exit code 1:
one was taken, was refused otherwise, or took more than 500 MB; 2: fewer than 200 were tried.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import resource
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from support import small_study
from support.answers import answer
from support.corruptions import Change, Edit, of_document, of_files
from support.corruptions_inside import bad_archives, bad_probes, of_manifests
from support.loading_watched import Watch
from support.server import QUIET

FEWEST, MOST_MB = 200, 500
_SEAL = "manifest.json.sha256"
_ANEW = ("MLmodel", "README.md", "conda.yaml", "python_env.yaml", "requirements.txt", "wheels")


def main() -> int:
    """Spoil, and print a line for each kind and one for every copy that was not refused as it should be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--verbose", action="store_true", help="print what was said of each")
    options = parser.parse_args()
    os.environ.update(QUIET)
    tried, failed, grown = Counter[str](), Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory(prefix="ngraph-corrupted-") as place:
        root = Path(place)
        corpus = _Corpus(root)
        before = _peak_mb()
        with Watch(root / "tried") as watch:
            for kind, name, try_it in corpus.all(random.Random(options.seed)):
                watch.seen.clear()
                had = _peak_mb()
                found = answer(try_it)
                grown[f"{kind}, {name}"] = round(_peak_mb() - had)
                problem = (
                    "" if found.kind == "refused" and not watch.seen else f"{found.kind}: {found.said} {watch.seen[:2]}"
                )
                tried[kind] += 1
                failed[kind] += bool(problem)
                if problem or options.verbose:
                    print(f"{'NOT REFUSED' if problem else 'refused'} {kind}: {name!r}: {problem or found.said}"[:600])
                corpus.tidy()
    peak = _peak_mb()
    for kind, count in tried.items():
        print(f"{kind}: {count - failed[kind]} of {count} refused in one line before anything was loaded")
    print(
        f"{tried.total() - failed.total()} of {tried.total()}; {peak:.0f} MB of memory, {before:.0f} before the first"
    )
    print("the most more by " + "; ".join(f"{name}: {size} MB" for name, size in grown.most_common(3)))
    if tried.total() < FEWEST:
        return 2
    return int(bool(failed.total()) or peak > MOST_MB)


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


class _Corpus:
    """What a small study left, and copies of it that are spoiled.

    Parameters
    ----------
    root : Path
        Where everything lies.
    """

    def __init__(self, root: Path) -> None:
        self._tried = root / "tried"
        self._tried.mkdir()
        os.environ["XDG_CACHE_HOME"] = str(root / "cache")
        os.chdir(root)
        self._left = small_study.left_in(root)

    def tidy(self) -> None:
        """Remove what was tried."""
        shutil.rmtree(self._tried)
        self._tried.mkdir()

    def all(self, rng: random.Random) -> Iterator[tuple[str, str, Callable[[], object]]]:
        """Every kind and name of a corruption, and what gives it to the package."""
        yield from self._packages(rng)
        yield from self._manifests()
        yield from self._probes()
        yield from self._cache(rng)
        yield from self._archives(rng)
        yield from self._served(rng)

    def _packages(self, rng: random.Random) -> Iterator[tuple[str, str, Callable[[], object]]]:
        from mlflow_ngraph import load_model

        for name, change in of_files(self._left.package, rng):
            if name.startswith(_ANEW):
                continue  # its bytes may differ: see hostile_packages.py
            target = self._copied(self._left.package, change)
            yield "package", name, partial(load_model, target)

    def _manifests(self) -> Iterator[tuple[str, str, Callable[[], object]]]:
        from mlflow_ngraph import load_model

        for name, edit in (*of_document(), *of_manifests()):
            target = self._copied(self._left.package, _sealed(edit))
            yield "manifest whose digest fits", name, partial(load_model, target)

    def _probes(self) -> Iterator[tuple[str, str, Callable[[], object]]]:
        """Arrays that harm who reads them, in packages in which everything fits."""
        from mlflow_ngraph.engines.probe import read_probe

        for name, content in bad_probes(self._tried):

            def change(target: Path, content: bytes = content) -> None:
                (target / "engine" / "probe.npz").write_bytes(content)

            target = self._copied(self._left.package, change)
            yield "probe", name, partial(read_probe, target / "engine")

    def _cache(self, rng: random.Random) -> Iterator[tuple[str, str, Callable[[], object]]]:
        from mlflow_ngraph.engines.store import EngineStore

        keys = sorted(path.name for path in self._left.engines.iterdir())
        entry, other = self._left.engines / keys[0], self._left.engines / keys[1]

        def find(target: Path) -> Callable[[], object]:
            # Renamed: whoever is asked for the key has to come to this entry.
            place = self._tried / "engines" / entry.name
            place.parent.mkdir(exist_ok=True)
            target.rename(place)
            return lambda: EngineStore(place.parent).find(entry.name)

        for name, change in of_files(entry, rng, 1):
            yield "cache", name, find(self._copied(entry, change))
        yield "cache", "the entry of another engine", find(self._copied(other, lambda target: None))
        for name, edit in of_document():
            target = self._copied(entry, _sealed(edit))
            yield "entry whose digest fits", name, find(target)

    def _archives(self, rng: random.Random) -> Iterator[tuple[str, str, Callable[[], object]]]:
        from mlflow_ngraph.engines.trust import EVERYTHING
        from mlflow_ngraph_archives import importing

        whole = self._left.archive.read_bytes()

        def take(content: bytes) -> Callable[[], object]:
            path, studies = self._tried / "study.tar", self._tried / "studies"
            path.write_bytes(content)
            studies.mkdir()

            def call() -> None:
                try:
                    importing.unpack(importing.check(path, EVERYTHING), studies)
                finally:
                    if list(studies.iterdir()) or len(list(self._tried.iterdir())) > 2:
                        raise RuntimeError("something was written")

            return call

        for name, content in bad_archives(whole, rng):
            yield "archive", name, take(content)

    def _served(self, rng: random.Random) -> Iterator[tuple[str, str, Callable[[], object]]]:
        """What lies on a tracking server is not what was logged there."""
        from mlflow_ngraph import pull

        aside = self._left.remote.with_name("aside")
        for number, (name, change) in enumerate(of_files(self._left.remote, rng, 1)):
            if " more" in name or "link to" in name or name.startswith((_SEAL, *_ANEW)) or number % 3:
                continue  # a client sees content: no names that nobody asks for, and nothing of how it is kept
            self._left.remote.rename(aside)
            shutil.copytree(aside, self._left.remote, symlinks=True)
            change(self._left.remote)
            target = self._tried / "pulled"

            def call(target: Path = target) -> None:
                pull(self._left.model, target, tracking_uri=self._left.tracking_uri)

            yield "server", name, call
            shutil.rmtree(self._left.remote)
            aside.rename(self._left.remote)

    def _copied(self, source: Path, change: Change) -> Path:
        target = self._tried / "copy"
        shutil.copytree(source, target)
        change(target)
        return target


def _sealed(edit: Edit) -> Change:
    """A manifest changed, and its digest with it."""

    def apply(target: Path) -> None:
        text = (target / "manifest.json").read_text()
        content = edit(text, json.loads(text)).encode("utf-8", "surrogatepass")
        (target / "manifest.json").write_bytes(content)
        (target / _SEAL).write_text(f"{hashlib.sha256(content).hexdigest()}  manifest.json\n")

    return apply


if __name__ == "__main__":
    sys.exit(main())
