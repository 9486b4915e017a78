"""``mlflow-ngraph fleet``: group of the verbs for the machines of a lab; plugins implement all of them."""

from __future__ import annotations

import click

from mlflow_ngraph.cli.lazy import LazyGroup

_FLEET, _SERVE = "mlflow-ngraph-fleet", "mlflow-ngraph-serve"
_VERBS = {
    "up": (_FLEET, "Start the engine on every machine, or say what to type there."),
    "status": (_FLEET, "Show every machine: its engine, versions, and who measures on it."),
    "down": (_FLEET, "Stop the engine everywhere, and prove that nothing is left."),
    "doctor": (_FLEET, "Check what a fleet needs, here and on its machines; changes nothing."),
    "follow": (_SERVE, "Have here what an alias of the registry points at, and serve it: for devices in use."),
    "attach": (_FLEET, "Come back to a study that runs on several devices."),
    "logs": (_FLEET, "Print what a device said."),
    "job": (_FLEET, ""),
}


@click.group(cls=LazyGroup, verbs=_VERBS, points="mlflow_ngraph.cli.fleet")
def fleet() -> None:
    """The machines of a lab, and the studies that run on several of them. See docs/how-to/run-a-fleet.md."""
