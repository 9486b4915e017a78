"""Read small YAML and JSON files of others with bounds: plain files only, limited in size, and without expanding
aliases.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

MAX_BYTES = 4 << 20
"""No file that a person writes is larger."""
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
        raise OSError(errno.EFBIG, f"it has more than {most} bytes", str(path))
    return text


def from_yaml(path: Path) -> Any:
    """Parse a YAML file into values that JSON has too, because they are stored as JSON.

    Raises `OSError` as `content`, and `ValueError` with a reason of one line: no YAML, too many values by aliases, a
    key that is no text, or a value that JSON does not have, such as a date.
    """
    import yaml

    try:
        document = yaml.safe_load(content(path).decode("utf-8"))
        if _values(document, {}) > _MOST_VALUES:
            raise ValueError(f"its aliases unfold to more than {_MOST_VALUES} values")
        if strange := next(_strange(document), ""):
            raise ValueError(f"{strange}: if it is a text, write it in quotes")
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


def _strange(value: Any) -> Iterator[str]:
    """Name the first value that YAML has and JSON does not."""
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                yield f"the key {str(key)[:40]} is read as {type(key).__name__}"
        for part in value.values():
            yield from _strange(part)
    elif isinstance(value, list):
        for part in value:
            yield from _strange(part)
    elif not isinstance(value, str | int | float | None):
        yield f"{str(value)[:40]} is read as {type(value).__name__}"


def _values(value: Any, known: dict[int, int]) -> int:
    """Count the values, once for each place; a value that contains itself has no end."""
    if isinstance(value, str) or not isinstance(value, Mapping | Sequence):
        return 1
    if id(value) not in known:
        known[id(value)] = _MOST_VALUES + 1
        parts = value.values() if isinstance(value, Mapping) else value
        known[id(value)] = 1 + sum(_values(part, known) for part in parts)
    return known[id(value)]
