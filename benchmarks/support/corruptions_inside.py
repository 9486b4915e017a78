"""What can be wrong inside of manifests, of probes and of archives of studies, where every digest fits."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import random
import tarfile
import zipfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from support.corruptions import ODD_NAMES, Edit, of_document


def _changed(*path: Any, value: Any) -> Edit:
    def apply(text: str, document: dict[str, Any]) -> str:
        place: Any = document
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        return json.dumps(document)

    return apply


def of_manifests() -> Iterator[tuple[str, Edit]]:
    """What can be wrong in a manifest besides what can be in every document."""
    for sizes in ([0], [], [-1], [1 << 40], ["1"], None, [1.5]):
        yield f"batch sizes {sizes}", _changed("spec", "batch_sizes", value=sizes)
    for shape in (None, "batch", ["many"], [-1], [1.5], [1 << 60]):
        yield f"an input of shape {shape}", _changed("spec", "inputs", 0, "shape", value=shape)
    for dtype in ("O", "object", "float8", "", None, "S5", "void", "float32\n"):
        yield f"an input of type {dtype!r}", _changed("spec", "inputs", 0, "dtype", value=dtype)
    for name in ODD_NAMES:
        if not name.isprintable():
            yield f"a file {name!r}", _changed("files", f"engine/{name}", value="0" * 64)
    for compiler in ("os:system", "../../x", "support.tiny:linear", "", None, "nothing"):
        yield f"the compiler {compiler!r}", _changed("spec", "compiler", value=compiler)
    yield "flags that are none", _changed("spec", "asked", "__class__", value="x")
    yield "a target that is none", _changed("spec", "target", "path", value="x")
    yield "a stage without an end", _changed("compiled", "stages", "save", value=float("inf"))


def bad_probes(scratch: Path) -> Iterator[tuple[str, bytes]]:
    """Arrays as ``np.savez`` writes them, and as it does not."""
    marker = scratch / "marker"

    class Harmful:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(marker),)

    def saved(**arrays: Any) -> bytes:
        stream = io.BytesIO()
        np.savez(stream, **arrays)
        return stream.getvalue()

    def zipped(content: bytes, compression: int = zipfile.ZIP_STORED, name: str = "input_0.npy") -> bytes:
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w", compression) as archive:
            archive.writestr(name, content)
            archive.writestr("output_0.npy", _npy((1,), b"\0\0\0\0"))
        return stream.getvalue()

    good = np.zeros((1, 4), np.float32)
    yield "a pickled object", saved(input_0=np.array([Harmful()], object), output_0=good)
    yield "a pickled object alone", zipped(pickle.dumps(Harmful()))
    yield "an array that unfolds to 2 GB", zipped(_npy((1 << 29,), bytes(1 << 24)), zipfile.ZIP_DEFLATED)
    yield "an array of zeros, packed", zipped(_npy((1 << 22,), bytes(1 << 24)), zipfile.ZIP_DEFLATED)
    yield "a size that lies", zipped(_npy((1 << 50,), bytes(64)))
    yield "a size that no memory has", zipped(_npy((1 << 62,), bytes(64)))
    yield "a negative size", zipped(_npy((-1,), bytes(64)))
    yield "no array", zipped(b"nothing")
    yield "a name that leads out", zipped(_npy((1,), bytes(4)), name="../../input_0.npy")
    yield "no inputs", saved(output_0=good)
    yield "no archive", b"nothing at all"
    yield "cut off", saved(input_0=good, output_0=good)[:200]
    yield "only one of two inputs", saved(input_1=good, output_0=good)


def _npy(shape: tuple[int, ...], content: bytes) -> bytes:
    """A file of an array of float32, whatever its content."""
    head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head.encode() + content


def bad_archives(whole: bytes, rng: random.Random) -> Iterator[tuple[str, bytes]]:
    """Archives of studies whose bytes, table of contents, members or order are not what was exported.

    Parameters
    ----------
    whole : bytes
        One that was.
    """
    from mlflow_ngraph_archives import contents

    for place in (*rng.sample(range(len(whole)), 20), 0, 100, 124, 156, 257, 345, len(whole) - 1):
        yield f"byte {place} flipped", whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]
    for end in (0, 1, 511, 512, 1024, len(whole) // 2, len(whole) - 512, len(whole) - 1):
        yield f"cut off after {end}", whole[:end]
    yield "something behind it", whole + b"\0" * 512
    yield "twice", whole + whole
    yield "packed", gzip.compress(whole)
    with tarfile.open(fileobj=io.BytesIO(whole)) as tar:
        held = {one.name: tar.extractfile(one).read() for one in tar}  # type: ignore[union-attr]
    table = json.loads(held.pop(contents.FILE))
    for name, text in _bad_contents(table):
        yield f"{name} of its contents", _written(text, held)
    yield from _bad_members(json.dumps(table), held)


def _written(text: str, files: dict[str, bytes]) -> bytes:
    """An archive with these files, whatever its table of contents says."""
    from mlflow_ngraph_archives import contents

    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, content in {contents.FILE: text.encode("utf-8", "surrogatepass"), **files}.items():
            tar.addfile(contents.member(name, len(content)), io.BytesIO(content))
    return stream.getvalue()


def _bad_contents(table: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The text of a table of contents, spoiled as a manifest is: its study has files, with a size each."""
    text, (good,) = json.dumps(table), table["studies"]
    of_journal = good["files"]["journal.jsonl"]
    about = {"files": good["files"], "size_bytes": of_journal["size"], "schema_version": table["schema_version"]}
    for name, edit in of_document():
        spoiled = edit(json.dumps(about), about)
        try:
            said = json.loads(spoiled)
            files = {**said["files"], "journal.jsonl": {**of_journal, "size": said["size_bytes"]}}
            other = {**table, "schema_version": said["schema_version"], "studies": [{**good, "files": files}]}
            found = json.dumps(other)
        except (ValueError, KeyError, TypeError, RecursionError):
            found = edit(text, {**table, **about})
        if found != text:
            yield name, found


def _bad_members(text: str, held: dict[str, bytes]) -> Iterator[tuple[str, bytes]]:
    from mlflow_ngraph_archives import contents

    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE):
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as other:
            for name, content in {contents.FILE: text.encode(), **held}.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                if name.endswith("summary.md"):
                    member.type, member.linkname, member.size = kind, "/etc/passwd", 0
                other.addfile(member, io.BytesIO(content) if member.size else None)
        yield f"a member of kind {kind!r}", stream.getvalue()
    names = list(held)
    for one, two in pairwise(names[:7]):
        if held[one] != held[two]:
            yield f"{one} and {two} swapped", _written(text, {**held, one: held[two], two: held[one]})
    yield "files in another order", _written(text, {name: held[name] for name in reversed(names)})
    yield "a file more", _written(text, {**held, "../../outside": b"x"})
    yield "a file less", _written(text, {name: held[name] for name in names[:-1]})
