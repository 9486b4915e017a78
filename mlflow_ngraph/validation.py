"""Pydantic's errors in one line: the place, the value found, and what is allowed; and durations such as 1h30m."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Any, get_origin

from pydantic import BaseModel, ValidationError

from mlflow_ngraph.text import LONGEST, shortened

_LISTS = ("list_type", "tuple_type")
_MAPPINGS = ("dict_type", "mapping_type", "model_type", "model_attributes_type")
_OTHER_TYPE = (*_LISTS, *_MAPPINGS, "string_type")
_WORDS = {
    "missing": "missing: say what it is",
    "literal_error": "expected {expected}",
    "enum": "expected {expected}",
    "greater_than": "expected more than {gt}",
    "greater_than_equal": "expected at least {ge}",
    "less_than": "expected less than {lt}",
    "less_than_equal": "expected at most {le}",
    "too_short": "expected at least {min_length} of them",
    "too_long": "expected at most {max_length} of them",
    "string_too_short": "expected a text of at least {min_length} characters",
    "string_too_long": "expected a text of at most {max_length} characters",
    "string_pattern_mismatch": "expected a text of the form {pattern}",
    "finite_number": "expected a finite number",
    **dict.fromkeys(("int_type", "int_parsing", "int_parsing_size", "int_from_float"), "expected a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "expected a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "expected true or false"),
    **dict.fromkeys(("string_type", "string_sub_type"), "expected a text"),
    **dict.fromkeys(_LISTS, "expected a list"),
    **dict.fromkeys(_MAPPINGS, "expected a mapping of keys"),
}
"""Pydantic's kinds of findings in words that need no knowledge of it."""


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """Format the first error, with a suggestion for an unknown key, and a count of the others."""
    # An unknown key first: it is often the misspelling of one that another finding misses.
    every = error.errors(include_url=False)
    places = [_place(finding["loc"]) for finding in every]
    # The other types of a union say nothing once one of them has fitted further in.
    findings = [
        finding
        for finding, place in zip(every, places, strict=True)
        if not (finding["type"] in _OTHER_TYPE and any(place == other[: len(place)] != other for other in places))
    ]
    findings.sort(key=lambda finding: finding["type"] != "extra_forbidden")
    first = findings[0]
    where = ".".join(str(part)[:LONGEST] for part in _place(first["loc"]))
    more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
    if first["type"] == "extra_forbidden":
        key = str(first["loc"][-1])
        known = sorted(_fields_at(model, first["loc"][:-1]))
        close = get_close_matches(key, known, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        return f"{where}: unknown key: {hint}allowed: {', '.join(known) or 'none'}{more}"
    bounds = {name: f"{value:g}" if isinstance(value, float) else value for name, value in first.get("ctx", {}).items()}
    own = first["msg"].removeprefix("Value error, ")
    words = _WORDS.get(first["type"], "{own}").format(own=own, **bounds)
    shown = "" if first["type"] in ("missing", "value_error") else f", found {shortened(first.get('input'))}"
    return f"{where}{': ' if where else ''}{' '.join(words.split())}{shown}{more}"


_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0}
"""By the units of a duration."""


def duration_s(value: object) -> float:
    """Parse seconds above 0: a number, or text such as ``90s``, ``5m`` or ``1h30m``. Raises `ValueError` otherwise."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf"):
        return float(value)
    if isinstance(value, str):
        text = "".join(value.lower().split())
        text += "s" if text.replace(".", "", 1).isdecimal() else ""
        parts = re.findall(r"(\d+(?:\.\d+)?)([hms])", text)
        seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
        if seconds > 0 and "".join(number + unit for number, unit in parts) == text:
            return seconds
    raise ValueError(f"expected a duration such as 90s, 5m or 1h30m, found {shortened(value)}")


def _place(location: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """A location without the names of types."""
    return tuple(part for part in location if not _is_type_tag(part))


def _is_type_tag(part: Any) -> bool:
    """True if a part of a location is a type name or schema label, which a reader does not know."""
    return isinstance(part, str) and (
        part.endswith("]") or part in {"str", "int", "list", "dict"} or part[:1].isupper()
    )


def _fields_at(model: type[BaseModel], location: tuple[Any, ...]) -> list[str]:
    current: Any = model
    named = False
    for part in location:
        if named or isinstance(part, int) or _is_type_tag(part):
            named = False
            continue
        fields = getattr(current, "model_fields", {})
        if part not in fields:
            return []
        # What follows the name of a mapping is a key that the user chose.
        named = get_origin(fields[part].annotation) is dict
        current = _nested_model(fields[part].annotation)
    return list(getattr(current, "model_fields", {}))


def _nested_model(annotation: Any) -> Any:
    """First pydantic model inside a type such as ``list[Model | str]``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in getattr(annotation, "__args__", ()):
        model = _nested_model(inner)
        if model is not None:
            return model
    return None
