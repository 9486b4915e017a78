"""Read and write large JSON in pieces, between which other threads run.

The standard library reads and writes in one go, and nothing else of the process runs meanwhile: a server would not even say
that it lives. Between two pieces other threads have their turn.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from json.scanner import py_make_scanner  # type: ignore[attr-defined] # the scanner that calls what is written in Python
from typing import Any

PIECE = 32 << 10
"""Characters that are read, or numbers that are written, at once: some milliseconds."""
_ENCODE = json.JSONEncoder(allow_nan=False).encode
_DECODER = cache(json.JSONDecoder)
"""Decoder of small texts by its parameters: the standard library makes one for each text."""
_NESTED = re.compile(r'["\[{]')


def loads(text: str, parse_constant: Callable[[str], Any]) -> Any:
    """As `json.loads` does."""
    if len(text) <= PIECE:
        return _DECODER(parse_constant=parse_constant).decode(text)
    decoder: Any = json.JSONDecoder(parse_constant=parse_constant)
    whole_array = decoder.parse_array
    at_once = json.JSONDecoder(parse_constant=parse_constant).decode

    def array(state: tuple[str, int], scan_once: Callable[[str, int], Any]) -> tuple[list[Any], int]:
        begin = state[1]
        values: list[Any] = []
        while True:
            end = text.find("]", begin, begin + PIECE)
            cut = end if end >= 0 else text.rfind(",", begin, begin + PIECE)
            piece = text[begin : max(begin, cut)]
            if cut < 0 or _NESTED.search(piece):
                nested: tuple[list[Any], int] = whole_array(state, scan_once)
                return nested
            if values and not piece.strip():
                raise json.JSONDecodeError("Expecting value", text, begin)
            values += at_once(f"[{piece}]")
            begin = cut + 1
            if end >= 0:
                return values, begin

    decoder.parse_array = array
    decoder.scan_once = py_make_scanner(decoder)
    return decoder.decode(text)


def dumps(content: Any, numbers: int) -> str:
    """As `json.dumps` does, without NaN and infinity. ``numbers`` is how many there are, or more."""
    return _ENCODE(content) if numbers <= PIECE // 8 else _in_pieces(content)


def _in_pieces(content: Any) -> str:
    if isinstance(content, dict):
        return "{" + ", ".join(f"{_ENCODE(key)}: {_in_pieces(value)}" for key, value in content.items()) + "}"
    if not isinstance(content, list) or not content:
        return _ENCODE(content)
    if isinstance(content[0], (list, dict)):
        return "[" + ", ".join(map(_in_pieces, content)) + "]"
    slices = (content[begin : begin + PIECE // 8] for begin in range(0, len(content), PIECE // 8))
    return "[" + ", ".join(_ENCODE(one)[1:-1] for one in slices) + "]"
