"""Archives of a study in which one file was changed: refused with its name, or the same figures?

    python benchmarks/changed_archives.py [--archives 500] [--seed 1]

A real study of two tiny modules is measured and exported. In each archive one file is another one: a bit flipped, another digit, cut, empty,
longer, or the content of another file; in four of five archives the table of contents has its new digest. ``import`` must refuse it with the
file's name, or derive the record and the study file of the whole archive. A journal whose checks are written anew is not among them: checks
show accidents, and only a signature shows who wrote it.

Exit code 1: another record or study file followed, or something else was raised.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import shutil
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

from support import records, small_study
from support.answers import answer
from support.server import QUIET

RIGHT = ("refused with the file's name", "taken with the same figures")


def main() -> int:
    """Change archives, and print what became of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--archives", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    records.add_option(parser)
    options = parser.parse_args()
    os.environ.update(QUIET)
    tally = Counter[str]()
    with tempfile.TemporaryDirectory(prefix="ngraph-changed-") as place:
        root = Path(place)
        study = small_study.measured(root / "device").directory
        for what, became in _tried(study, root, Random(options.seed), options.archives):
            tally[became if became in RIGHT else "wrong"] += 1
            if became not in RIGHT:
                print(f"WRONG {what}: {became}"[:900], flush=True)
    print(", ".join(f"{tally[name]} {name}" for name in (*RIGHT, "wrong")) + f" of {tally.total()}")
    total, note = tally.total(), f"{tally[RIGHT[0]]} refused, {tally[RIGHT[1]]} taken"
    name = "refused with the file's name, or taken with the same record"
    good = records.at_least(name, total - tally["wrong"], total, f"of {total}", note)
    records.keep(options, "changed_archives", good)
    return int(tally["wrong"] > 0)


def _tried(study: Path, root: Path, rng: Random, count: int) -> Iterator[tuple[str, str]]:
    """Import changed archives; yields what was changed, and what became of it."""
    from mlflow_ngraph.execute import replay
    from mlflow_ngraph_archives import contents
    from mlflow_ngraph_archives.export import export

    with tarfile.open(export([study], root / "study.tar").path) as tar:
        files = {entry.name: tar.extractfile(entry).read() for entry in tar}  # type: ignore[union-attr]
    engines = [name for name in files if f"/{contents.ENGINES}" in name]
    others = [name for name in files if name not in (*engines, contents.FILE)]
    figures = repr(replay.load(study)), files[f"{study.name}/study.yaml"]
    for number in range(count):
        name = rng.choice(engines if number % 3 == 0 else others)
        how, changed = _changed(files[name], files[rng.choice([*engines, *others])], rng)
        sealed = number % 5 > 0
        path = _written({**files, name: changed}, name if sealed else None, root / "changed.tar")
        yield f"{name} {how}{', sealed' * sealed}", _became(path, root / f"home-of-{number}", name, figures)


def _changed(content: bytes, another: bytes, rng: Random) -> tuple[str, bytes]:
    place = rng.randrange(len(content))
    at = rng.choice([number for number, byte in enumerate(content) if chr(byte).isdigit()] or [place])
    lines = content.splitlines(keepends=True)
    ways = {
        "with a bit flipped": content[:place] + bytes([content[place] ^ 1 << rng.randrange(8)]) + content[place + 1 :],
        "with another digit": content[:at] + str((content[at] + 1) % 10).encode() + content[at + 1 :],
        "cut": content[:place],
        "without its end": b"".join(lines[: len(lines) // 2]),
        "empty": b"",
        "longer": content + b"\0",
        "of zeros": bytes(len(content)),
        "that is another file": another,
    }
    return rng.choice([(how, changed) for how, changed in ways.items() if changed != content])


def _written(files: dict[str, bytes], sealed: str | None, path: Path) -> Path:
    """Write an archive, whose table of contents has the digest of one file anew."""
    from mlflow_ngraph_archives import contents

    if sealed:
        table = json.loads(files[contents.FILE])
        digest = {"sha256": hashlib.sha256(files[sealed]).hexdigest(), "size": len(files[sealed])}
        table["studies"][0]["files"][sealed.partition("/")[2]] = digest
        files = {**files, contents.FILE: json.dumps(table).encode()}
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        for name, content in files.items():
            tar.addfile(contents.member(name, len(content)), io.BytesIO(content))
    return path


def _became(path: Path, home: Path, name: str, figures: tuple[str, bytes]) -> str:
    from mlflow_ngraph.engines.trust import EVERYTHING
    from mlflow_ngraph.execute import replay
    from mlflow_ngraph_archives import importing

    studies = home / "studies"
    studies.mkdir(parents=True)
    found = answer(lambda: importing.unpack(importing.check(path, EVERYTHING), studies))
    places = list(studies.iterdir())
    try:
        if found.kind == "refused" and not places:
            return RIGHT[0] if name.partition("/")[2] in found.said else f"refused without its name: {found.said}"
        if found.kind != "taken":
            return f"{found.kind}: {found.said}"
        same = (repr(replay.load(places[0])), (places[0] / "study.yaml").read_bytes()) == figures
        return RIGHT[1] if same else "other figures or another study file follow"
    finally:
        shutil.rmtree(home)


if __name__ == "__main__":
    sys.exit(main())
