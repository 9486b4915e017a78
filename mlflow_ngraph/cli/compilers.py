"""``mlflow-ngraph compilers``: what is there, what can run here, and which flags each has."""

from __future__ import annotations

from typing import Any

import click
from rich.text import Text

from mlflow_ngraph.cli import output, tables
from mlflow_ngraph.errors import DependencyError


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
    console, lacking = output.console(), tables.Footnotes()
    tables.show(
        console,
        ["name", "version", "runs here", "precisions", "modes", ("what it is", tables.PROSE)],
        [
            (row["name"], row["version"], _runs(row, lacking), row["precisions"], row["modes"], row["summary"])
            for row in rows
        ],
    )
    for line in lacking.lines("compiler"):
        console.print(line, style="yellow", soft_wrap=True)
    if not names:
        console.print("\nthe flags of one: mlflow-ngraph compilers NAME", style="dim")
        return 0
    for row in rows:
        console.print(f"\nflags of {row['name']}:" if row["flags"] else f"\n{row['name']} has no flags", style="bold")
        if row["flags"]:
            titles: list[tables.Column] = [
                "flag",
                ("default", tables.PROSE),
                ("allowed", tables.PROSE),
                ("meaning", tables.PROSE),
            ]
            tables.show(console, titles, [(f["name"], f["default"], f["type"], f["description"]) for f in row["flags"]])
    return 0


def _runs(row: dict[str, Any], lacking: tables.Footnotes) -> Text:
    """Whether a compiler can run here; below the table stands what it lacks, and how to get it."""
    if row["available"]:
        return Text("yes", style="green")
    return Text(lacking.marked("no", "; ".join(filter(None, (row["reason"], row["hint"])))), style="red")


def describe(name: str) -> dict[str, Any]:
    """Everything that is known about a compiler without running it.

    Raises
    ------
    UnknownNameError
        No compiler has this name.
    """
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
