"""``mlflow-ngraph fleet attach``, ``logs``, hidden ``job``: follow a fleet's study, print logs, run on a device."""

from __future__ import annotations

from pathlib import Path

import click

from mlflow_ngraph.cli import output
from mlflow_ngraph.cli.lists import items


@click.command()
@click.argument("study", required=False)
@click.option("--insecure", is_flag=True, help="Use an engine that lets in everybody.")
@output.json_option
def attach(study: str | None, insecure: bool, as_json: bool) -> int:
    """Come back to STUDY, or to the newest one; an interrupt ends it everywhere."""
    from mlflow_ngraph_fleet.cli.benchmark import come_back

    return come_back(study, insecure=insecure, as_json=as_json)


@click.command()
@click.argument("study", required=False)
@click.option("--device", "devices", metavar="NAME,...", help="Of these; of all by default.")
@click.option("--insecure", is_flag=True, help="Use an engine that lets in everybody.")
def logs(study: str | None, devices: str | None, insecure: bool) -> int:
    """Print what the devices of STUDY, or of the newest one, have said so far."""
    from mlflow_ngraph_fleet import connection as engines
    from mlflow_ngraph_fleet import fleet_plan, fleet_study
    from mlflow_ngraph_fleet.wire import Listener

    place = fleet_plan.find(study)
    kept = fleet_plan.read(place)
    described = fleet_plan.fleet_of(place)
    console = output.console()
    with engines.connect(described, insecure=insecure) as engine:
        for device in described.chosen(items(devices)) if devices else kept["devices"]:
            for attempt in range(1, kept["devices"].get(device, 0) + 1):
                console.print(f"{device}, job {attempt}", style="bold")
                said = Listener().hear(engine.logs(fleet_study.job_id(kept["id"], device, attempt)))
                for line in said:
                    if isinstance(line, str):
                        console.print(f"  {line}", soft_wrap=True)
    return 0


@click.command(hidden=True)
def job() -> int:
    """Run the study that lies in this directory: what the engine starts on a device."""
    from mlflow_ngraph_fleet.device_job import run

    return run(Path.cwd())
