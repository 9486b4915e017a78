"""Read untrusted YAML and JSON files: bounds their size and values, refuses duplicate keys and ambiguous YAML."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

MAX_BYTES = 4 << 20
"""No file that a person writes is larger."""
_YAML = "tag:yaml.org,2002:"
_SURPRISE = re.compile(r"[-+]?(0[\d_]|[^:]*:)")
"""Numbers that YAML 1.1 reads to the base of 8 or 60."""
_MOST_VALUES = 300_000
"""Values of a document, each as often as an alias repeats it."""


class DoubledError(ValueError):
    """A duplicate key: readers disagree on which value counts."""


def opened(path: Path) -> BinaryIO:
    """Open a file without blocking, as opening a pipe would. Raises `OSError` if it is unreadable or no plain file."""
    stream = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        stream.close()
        raise OSError(errno.EINVAL, "it is no plain file", str(path))
    return stream


def content(path: Path, most: int = MAX_BYTES) -> bytes:
    """Read a small file. Raises `OSError` as `opened`, or if it has over ``most`` bytes."""
    with opened(path) as stream:
        text = stream.read(most + 1)
    if len(text) > most:
        raise OSError(errno.EINVAL, f"it has more than {most} bytes", str(path))
    return text


def from_yaml(path: Path) -> Any:
    """Parse a YAML file. Raises `OSError` as `content`, and `ValueError` as `yaml_value`."""
    try:
        text = content(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(str(error)) from None
    return yaml_value(text)


def yaml_value(text: str) -> Any:
    """Parse YAML into values that JSON has too, because they are stored as JSON.

    Raises `ValueError` with a reason of one line: no YAML, too many values by aliases, or with its place a key that is no
    text or a duplicate, or a value that JSON does not have or that is not what it looks like.
    """
    import yaml

    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        if root is None:
            return None
        for node in _nodes(root, set()):
            for mark, wrong in _misread(node, loader.construct_object):
                raise ValueError(f"line {mark.line + 1}, column {mark.column + 1}: {wrong}")
        document = loader.construct_document(root)
        if _values(document, {}) > _MOST_VALUES:
            raise ValueError(f"its aliases unfold to more than {_MOST_VALUES} values")
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(" ".join(str(error).split())) from None
    return document


def from_json(text: bytes) -> Any:
    """Parse a JSON document.

    Raises `ValueError` with a reason of one line: no JSON, a duplicate key, or too many values.
    """
    # Of a few bytes each, all of them at once would take the memory of a machine.
    if sum(text.count(mark) for mark in (b",", b"[", b"{")) > _MOST_VALUES:
        raise ValueError(f"it has more than {_MOST_VALUES} values")
    try:
        return json.loads(text, object_pairs_hook=_each_once)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"invalid JSON: {error}") from None
    except DoubledError:
        raise
    except ValueError:  # more digits than Python reads
        raise ValueError("it has a number that cannot be") from None


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        names = [name for name, _ in pairs]
        raise DoubledError(f"the key {max(names, key=names.count)[:40]!r} stands in it twice")
    return mapping


def _nodes(node: Any, known: set[int]) -> Iterator[Any]:
    """The nodes of a YAML document, each once, and a mapping after its keys."""
    if id(node) not in known:
        known.add(id(node))
        for part in node.value if isinstance(node.value, list) else ():
            for inner in part if isinstance(part, tuple) else (part,):
                yield from _nodes(inner, known)
        yield node


def _misread(node: Any, read: Callable[[Any], Any]) -> Iterator[tuple[Any, str]]:
    """Say what a reader of YAML takes for something else than a person does, with its place."""
    mark = node.start_mark
    kind, text = node.tag.removeprefix(_YAML), node.value[:40] if isinstance(node.value, str) else "it"
    if kind == "bool" and text.lower() not in ("true", "false"):
        node.tag = f"{_YAML}str"  # as in YAML 1.2: on, off, yes and no are words
    elif kind in ("int", "float"):
        value = read(node)
        if isinstance(value, float) and not math.isfinite(value):
            yield mark, f"{text} is no finite number"
        if _SURPRISE.match(text):
            yield mark, f"{text} is read as {value}: write that, or quotes around a text"
    elif kind == "map":
        known: set[tuple[str, str]] = set()
        for key, _ in node.value:
            name = key.value if isinstance(key.value, str) else "there"
            kind = key.tag.removeprefix(_YAML)
            if kind not in ("str", "merge"):
                yield key.start_mark, f"the key {name[:40]} is read as {kind}: if it is a text, write it in quotes"
            if (kind, name) in known:
                yield key.start_mark, f"the key {name[:40]!r} stands in it twice"
            known.add((kind, name))
    elif kind not in ("str", "bool", "null", "seq", "merge"):
        yield mark, f"{text} is read as {kind}: if it is a text, write it in quotes"


def _values(value: Any, known: dict[int, int]) -> int:
    """Count the values, once for each place; a value that contains itself has no end."""
    if isinstance(value, str) or not isinstance(value, Mapping | Sequence):
        return 1
    if id(value) not in known:
        known[id(value)] = _MOST_VALUES + 1
        parts = value.values() if isinstance(value, Mapping) else value
        known[id(value)] = 1 + sum(_values(part, known) for part in parts)
    return known[id(value)]
