"""Writer of the text format of Protocol Buffers, as far as Triton's model configuration needs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Union

Fields = Sequence[tuple[str, "Value"]]


class Name(str):
    """A constant of an enumeration, which has no quotes."""

    __slots__ = ()


Value = Union[bool, int, str, Name, Sequence[int], "Message"]


class Message:
    """A nested message."""

    def __init__(self, *fields: tuple[str, Value]) -> None:
        self.fields = fields


def text(fields: Fields) -> str:
    """Text of some fields, one a line."""
    return "".join(f"{line}\n" for line in _lines(fields, ""))


def _lines(fields: Fields, indent: str) -> list[str]:
    lines = []
    for name, value in fields:
        if isinstance(value, Message):
            lines += [f"{indent}{name} {{", *_lines(value.fields, f"{indent}  "), f"{indent}}}"]
        else:
            lines.append(f"{indent}{name}: {_scalar(value)}")
    return lines


def _scalar(value: bool | int | str | Sequence[int]) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, Name)):
        return str(value)
    if isinstance(value, str):
        return f'"{_escaped(value)}"'
    return f"[ {', '.join(map(str, value))} ]" if value else "[ ]"


def _escaped(content: str) -> str:
    """Bytes that are no plain ASCII as octal numbers, which every parser of the format knows."""
    return "".join(
        chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\{byte:03o}" for byte in content.encode()
    )
