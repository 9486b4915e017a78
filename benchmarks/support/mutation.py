"""Inputs that are nearly what they should be: bytes changed at random, and documents with a value, a key or a branch replaced."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

STRANGE: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 10**40, -(10**40), 0.5, 1e308, -1e308, 1e-320, float("inf"), float("nan")),
    *("", " ", "x" * 5000, "\x00", "\x1b[31mred", "a\nb", "../../outside", "/etc/passwd", "{0}", "%s", "=1+1", "\u202e", "1e999"),
    *([], {}, [[]], [None], {"": None}, {"a": {}}, [0] * 1000, ["x"] * 3, "NaN", "ok", "torch:os:system", "timm:", "file:///"),
)  # fmt: skip
"""Values that somebody may have thought of, and nobody means."""
_BYTES = (
    b"\x00",
    b"\xff",
    b"\n",
    b"}",
    b"]",
    b'"',
    b":",
    b",",
    b"-",
    b"9" * 5000,
    b"[" * 3000,
    b"\xed\xa0\x80",
    b"NaN",
    b"1e999",
)
_MOST = 1 << 20
"""Bytes of an input."""


def strange(rng: random.Random) -> Any:
    """One of `STRANGE`, to be changed by whoever gets it."""
    return copy.deepcopy(rng.choice(STRANGE))


def altered(content: bytes, rng: random.Random, others: list[bytes] | None = None) -> bytes:
    """A few places of an input changed.

    Parameters
    ----------
    others : list[bytes] | None
        Inputs that pieces may come from.
    """
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        content = _altered_once(content, rng, others or [content])
    return content[:_MOST]


def _altered_once(content: bytes, rng: random.Random, others: list[bytes]) -> bytes:
    size = len(content)
    start = rng.randrange(size + 1)
    end = min(size, start + rng.choice((1, 1, 2, 4, 8, 64, 512, 4096)))
    other = rng.choice(others)
    there = rng.randrange(len(other) + 1)
    middle = rng.choice(
        (
            bytes(byte ^ (1 << rng.randrange(8)) for byte in content[start : start + 1]) + content[start + 1 : end],
            b"",
            content[start:end] * rng.choice((2, 3, 100)),
            rng.choice(_BYTES) + content[start:end],
            rng.randbytes(end - start),
            other[there : there + (end - start)],
            rng.choice(_BYTES),
        )
    )
    return content[:start] + middle + (content[end:] if rng.random() < 0.9 else b"")


def replaced(document: Any, rng: random.Random) -> Any:
    """A document with one to three of its values replaced, removed, doubled or exchanged."""
    document = copy.deepcopy(document)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        places = list(_places(document))
        if not places:
            return strange(rng)
        holder, key = rng.choice(places)
        way = rng.randrange(8)
        if way < 4:
            holder[key] = strange(rng)
        elif way == 4:
            del holder[key]
        elif way == 5:
            other, name = rng.choice(places)
            holder[key] = copy.deepcopy(other[name])
        elif way == 6 and isinstance(holder, dict):
            holder[rng.choice(("more", "", "a b", "\x1b", "schema_version", "__class__"))] = strange(rng)
        else:
            holder[key] = _nudged(holder[key], rng)
    return document


def _nudged(value: Any, rng: random.Random) -> Any:
    """Another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return rng.choice((-value, value + 1, value * 10**6, value * 10**300, value / 7 if abs(value) < 10**300 else 0))
    if isinstance(value, str):
        return rng.choice((value[::-1], value + value, value[:-1], value.upper(), f"{value}\n{value}", f"../{value}"))
    if isinstance(value, list):
        return rng.choice((value * 2, value[:-1], [value], value[::-1]))
    return [value]


def _places(document: Any) -> Any:
    """Every place of a document, as what holds it and the key there."""
    keys = document if isinstance(document, dict) else range(len(document)) if isinstance(document, list) else ()
    for key in list(keys):
        yield document, key
        yield from _places(document[key])


def with_doubled_key(text: str, rng: random.Random) -> str:
    """JSON in which one key stands twice, with another value the second time."""
    starts = [place for place, letter in enumerate(text) if letter == "{"]
    if not starts:
        return text
    start = rng.choice(starts) + 1
    try:
        name = json.JSONDecoder().raw_decode(text, start + len(text[start:]) - len(text[start:].lstrip()))[0]
    except ValueError:
        return text
    if not isinstance(name, str):
        return text
    return f"{text[:start]}{json.dumps(name)}: {json.dumps(rng.choice(STRANGE))}, {text[start:]}"
