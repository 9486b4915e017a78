"""``mlflow-ngraph info devices``: device profiles, and the fingerprint of this machine."""

from __future__ import annotations

from typing import Any

import click

from mlflow_ngraph.cli import output, tables
from mlflow_ngraph.tables.sheet import Cell, Sheet, prose


@click.command()
@output.json_option
def devices(as_json: bool) -> int:
    """List device profiles and whether this machine is one, and describe this machine."""
    from mlflow_ngraph.devices.fingerprint import fingerprint, summary, versions
    from mlflow_ngraph.devices.registry import DEVICES, create

    rows: list[dict[str, Any]] = []
    for name in DEVICES.names():
        profile = create(name)
        fitness = profile.fitness()
        rows.append(
            {
                "name": name,
                "summary": profile.summary,
                "accelerator": profile.accelerator,
                "compilers": list(profile.compilers),
                "serves": fitness.serves,
                "problems": list(fitness.problems),
                "warnings": list(fitness.warnings),
            }
        )
    machine = fingerprint()
    if as_json:
        output.print_json({"devices": rows, "machine": machine, "versions": versions()})
        return 0
    profiles = Sheet(
        "",
        ["name", "this machine", "accelerator", prose("what it is, and what to know")],
        [
            (
                row["name"],
                Cell("yes", tone="good") if row["serves"] else Cell("no", tone="bad"),
                row["accelerator"],
                "; ".join([row["summary"], *row["problems"], *row["warnings"]]),
            )
            for row in rows
        ],
    )
    here = Sheet("this machine", ["", prose("")], _machine_rows(machine, summary(machine)))
    tables.show(output.console(), profiles, here)
    return 0


def _machine_rows(machine: dict[str, Any], line: str) -> list[tuple[str, str]]:
    hardware, system = machine["hardware"], machine["system"]
    shown = {
        "hardware": line,
        "processors": f"{machine['processors']} usable",
        "instructions": " ".join(hardware["cpu"]["isa"]),
        "system": f"{system['distribution']}, kernel {system['kernel']}, {system['libc']}",
        "governor": system["governor"] or "not shown by the kernel",
        "turbo": {True: "on", False: "off", None: "not shown by the kernel"}[system["turbo"]],
        "virtualization": ", ".join(f"{key}: {value}" for key, value in system["virtualization"].items())
        or "none seen",
        "jetpack": system["jetpack"],
        "power mode": system["power_mode"],
        "sensors": ", ".join(system["sensors"]),
        "gpu driver": system["gpu_driver"],
        "digest": machine["digest"],
    }
    return [(key, value) for key, value in shown.items() if value]
