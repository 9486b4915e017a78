"""``mlflow-ngraph info compilers``: all known compilers, their version, availability here, and flags."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from mlflow_ngraph.cli import output, tables
from mlflow_ngraph.errors import DependencyError
from mlflow_ngraph.tables.sheet import Cell, Part, Sheet, prose


@click.command()
@click.argument("names", metavar="[NAME]...", nargs=-1)
@output.json_option
def compilers(names: tuple[str, ...], as_json: bool) -> int:
    """List every compiler with its version, whether it can run here, and if not what to do.

    With NAMEs, also their flags with defaults.
    """
    from mlflow_ngraph.compilers.registry import COMPILERS

    rows = [describe(name) for name in names or COMPILERS.names()]
    if as_json:
        output.print_json({"compilers": rows})
        return 0
    parts: list[Part] = [_sheet(rows)]
    parts += (
        map(_flag_sheet, rows) if names else [Cell("the flags of one: mlflow-ngraph info compilers NAME", tone="faint")]
    )
    tables.show(output.console(), *parts)
    return 0


def _sheet(rows: Sequence[dict[str, Any]]) -> Sheet:
    return Sheet(
        "",
        ["name", "version", "runs here", "precisions", "modes", prose("what it is")],
        [(row["name"], row["version"], _runs(row), row["precisions"], row["modes"], row["summary"]) for row in rows],
        one="compiler",
    )


def _runs(row: dict[str, Any]) -> Cell:
    """Availability of a compiler here; if it is missing, what it lacks and how to get it."""
    if row["available"]:
        return Cell("yes", tone="good")
    return Cell("no", note="; ".join(filter(None, (row["reason"], row["hint"]))), tone="bad")


def _flag_sheet(row: dict[str, Any]) -> Sheet:
    return Sheet(
        f"flags of {row['name']}:" if row["flags"] else f"{row['name']} has no flags",
        ["flag", prose("default"), prose("allowed"), prose("meaning")],
        [(flag["name"], flag["default"], flag["type"], flag["description"]) for flag in row["flags"]],
    )


def describe(name: str) -> dict[str, Any]:
    """Everything that is known about a compiler without running it; raises `UnknownNameError` if there is none."""
    from mlflow_ngraph.compilers.registry import COMPILERS

    try:
        kind = COMPILERS.get(name)
    except DependencyError as error:
        return {
            "name": name,
            "summary": "",
            "version": None,
            "available": False,
            "reason": str(error).partition("; install")[0],
            "hint": COMPILERS.entries[name].hint,
            "precisions": [],
            "modes": [],
            "accelerators": [],
            "flags": [],
        }
    availability = kind.availability()
    return {
        "name": name,
        "summary": kind.summary,
        "version": availability.version,
        "available": availability.available,
        "reason": availability.reason,
        "hint": availability.hint,
        "precisions": list(kind.precisions),
        "modes": list(kind.modes),
        "accelerators": list(kind.accelerators),
        "flags": _flags(kind.flags_type.model_json_schema(), kind.flags_type().model_dump()),
    }


def _flags(schema: dict[str, Any], defaults: dict[str, Any]) -> list[dict[str, Any]]:
    """Name, default, allowed values and help of each flag, from the JSON schema of the compiler's flags."""
    definitions = schema.get("$defs", {})
    return [
        {
            "name": name,
            "default": defaults[name],
            "type": _allowed(field, definitions),
            "description": " ".join(field.get("description", "").replace("``", "").split()),
        }
        for name, field in schema.get("properties", {}).items()
    ]


def _allowed(field: dict[str, Any], definitions: dict[str, Any]) -> str:
    """A field's type or values in words."""
    if "$ref" in field:
        return _allowed(definitions.get(field["$ref"].rpartition("/")[2], {}), definitions)
    if "enum" in field:
        return " | ".join(map(str, field["enum"]))
    if "const" in field:
        return str(field["const"])
    if "anyOf" in field:
        return " | ".join(_allowed(option, definitions) for option in field["anyOf"])
    words = {"integer": "whole number", "null": "none", "boolean": "true | false", "string": "text"}
    text = words.get(field.get("type", ""), field.get("type", "anything"))
    bounds = [
        f"{sign} {field[key]:g}"
        for key, sign in (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<"))
        if key in field
    ]
    return " ".join([text, *bounds])
