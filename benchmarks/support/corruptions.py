"""Ways to spoil a folder of files and a document of JSON, each with a name: what somebody sends who was careless or means harm."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

Change = Callable[[Path], None]
"""Spoils a folder."""
Edit = Callable[[str, dict[str, Any]], str]
"""Spoils a document: gives another text of it."""

ODD_NAMES = (
    *("sitecustomize.py", "extra.so", "usercustomize.py", ".hidden", "con\nfusing", "\x1b[2Jcleared", "trailing ", "x" * 255),
    *("\u202egpj.exe", "-rf", "a\tb", "%2e%2e%2f", "\udcff"),
)  # fmt: skip
TRAVERSALS = (
    *("../outside", "../../outside", "engine/../../outside", "/etc/passwd", "engine/../engine/../../x", "engine//twice"),
    *("engine/./here", "engine/", "engine\\..\\x", "C:\\x", "engine/a\x00b", "", ".", "..", "engine/" + "x" * 300),
    *("engine/" + "y/" * 3000 + "z", "manifest.json", "./manifest.json", "engine/../manifest.json"),
)  # fmt: skip


def of_files(folder: Path, rng: random.Random, flips: int = 2) -> Iterator[tuple[str, Change]]:
    """What can be done to each file of a folder, and to two of them.

    Parameters
    ----------
    flips : int
        Bytes that are changed in each file, one at a time.
    """
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    for name in names:
        size = (folder / name).stat().st_size
        for place in {rng.randrange(size) for _ in range(flips)} if size else ():
            yield f"{name}: byte {place} flipped", _rewritten(name, _flip(place, 1 << rng.randrange(8)))
        yield f"{name}: cut off", _rewritten(name, lambda content: content[: len(content) // 2])
        yield f"{name}: longer", _rewritten(name, lambda content: content + b"\0")
        yield f"{name}: removed", _removed(name)
        yield f"{name}: a link to the same content", _linked(name)
        yield f"{name}: a folder", _folder(name)
    for one, other in zip(names, names[1:] + names[:1], strict=True):
        if (folder / one).read_bytes() != (folder / other).read_bytes():
            yield f"{one} and {other} swapped", _swapped(one, other)
    kinds: dict[str, Callable[[Path], None]] = {"pipe": os.mkfifo, "socket": _socket, "link to nowhere": _nowhere}
    for kind, make in kinds.items():
        for name in (names[0], names[-1]):
            yield f"{name}: a {kind}", _special(name, make)
    for name in ODD_NAMES:
        yield f"a file {name!r} more", _added(name)
    folders = sorted({name.rpartition("/")[0] for name in names} - {""})
    for name in folders[:2]:
        yield f"{name}: a link to a folder", _linked_folder(name)


def _flip(place: int, bit: int) -> Callable[[bytes], bytes]:
    return lambda content: content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :]


def _rewritten(name: str, change: Callable[[bytes], bytes]) -> Change:
    def apply(target: Path) -> None:
        content = (target / name).read_bytes()
        _write(target / name, change(content))

    return apply


def _write(path: Path, content: bytes) -> None:
    """A new file: it may be read only, or have other names."""
    path.unlink(missing_ok=True)
    path.write_bytes(content)


def _removed(name: str) -> Change:
    return lambda target: (target / name).unlink()


def _added(name: str) -> Change:
    return lambda target: _write(target / name, b"import os")


def _linked(name: str) -> Change:
    def apply(target: Path) -> None:
        outside = target.with_name(f"{target.name}-outside")
        shutil.copyfile(target / name, outside)
        (target / name).unlink()
        (target / name).symlink_to(outside)

    return apply


def _linked_folder(name: str) -> Change:
    def apply(target: Path) -> None:
        outside = target.with_name(f"{target.name}-outside")
        shutil.rmtree(outside, ignore_errors=True)
        (target / name).rename(outside)
        (target / name).symlink_to(outside)

    return apply


def _folder(name: str) -> Change:
    def apply(target: Path) -> None:
        (target / name).unlink()
        (target / name).mkdir()

    return apply


def _swapped(one: str, other: str) -> Change:
    def apply(target: Path) -> None:
        first, second = (target / one).read_bytes(), (target / other).read_bytes()
        _write(target / one, second)
        _write(target / other, first)

    return apply


def _special(name: str, make: Callable[[Path], None]) -> Change:
    def apply(target: Path) -> None:
        (target / name).unlink()
        make(target / name)

    return apply


def _socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # its name may be longer than those of sockets
    try:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(path.name)
    finally:
        os.chdir(here)


def _nowhere(path: Path) -> None:
    path.symlink_to("nowhere")


def of_document() -> Iterator[tuple[str, Edit]]:
    """What can be done to the text of any document whose ``files`` have digests, and which has a ``size_bytes``."""
    for name in TRAVERSALS:
        yield f"a file {name[:30]!r}", _updated("files", name, value="0" * 64)
    digests: tuple[Any, ...] = ("", "0", "0" * 63, "F" * 64, "g" * 64, None, 5, ["0" * 64])
    for digest in digests:
        yield f"the digest {digest!r}", _edited(partial(_first, value=digest))
    sizes: tuple[Any, ...] = (-1, 0, 1, 10**15, 10**400, "12", None, True, 1.5, float("nan"), [])
    for size in sizes:
        yield f"the size {str(size)[:20]}", _updated("size_bytes", value=size)
    for more, words in ((-1, "a byte less"), (1, "a byte more")):
        yield words, _edited(partial(_resized, more=more))
    versions: tuple[Any, ...] = (0, 99, -1, "1", None, True, [], 10**300)
    for version in versions:
        yield f"format {str(version)[:20]}", _updated("schema_version", value=version)
    for key in ("files", "schema_version", "size_bytes"):
        yield f"{key} twice", partial(_doubled, key)
        yield f"no {key}", _edited(partial(_without, key=key))
    yield "a file twice", lambda text, _: text.replace('"files"', '"files": {"a": "b", "a": "c"}, "files"', 1)
    yield "an unknown key", _updated("more", value=1)
    yield "endless digits", lambda text, _: text.replace('"size_bytes": ', '"size_bytes": ' + "9" * 5000, 1)
    yield "nested too deeply", partial(_instead, "[" * 100_000)
    yield "much of nothing", partial(_instead, "[" + "[]," * 1_300_000 + "[]]")
    yield "not JSON", lambda text, _: text[:-20]
    yield "something behind it", lambda text, _: text + "{}"
    yield "a mark before it", lambda text, _: "\ufeff" + text
    for other in ("", "null", "[]", "5", '"text"', "{}"):
        yield f"the document {other!r}", partial(_instead, other)


def _instead(other: str, text: str, document: dict[str, Any]) -> str:
    return other


def _updated(*path: str, value: Any) -> Edit:
    """Another value at a place."""

    def change(document: dict[str, Any]) -> None:
        place = document
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return _edited(change)


def _resized(document: dict[str, Any], more: int) -> None:
    document["size_bytes"] += more


def _without(document: dict[str, Any], key: str) -> None:
    del document[key]


def _edited(change: Callable[[dict[str, Any]], object]) -> Edit:
    def apply(text: str, document: dict[str, Any]) -> str:
        changed = json.loads(json.dumps(document))
        change(changed)
        return json.dumps(changed)

    return apply


def _first(document: dict[str, Any], value: Any) -> None:
    """Another digest for a file."""
    document["files"][next(iter(document["files"]))] = value


def _doubled(key: str, text: str, document: dict[str, Any]) -> str:
    return text.replace(f'"{key}":', f'"{key}": {json.dumps(document[key])}, "{key}":', 1)
