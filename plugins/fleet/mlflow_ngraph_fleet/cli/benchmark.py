"""Run a study on several devices from the command line, or come back to it: live table, interrupts, comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlflow_ngraph.cli import output, tables
from mlflow_ngraph.errors import FleetError, UsageError
from mlflow_ngraph.processes.interruption import ending
from mlflow_ngraph.tables.sheet import Sheet, prose
from mlflow_ngraph_fleet import connection as engines
from mlflow_ngraph_fleet import description, fleet_plan, fleet_study
from mlflow_ngraph_fleet.cli.table import FleetTable
from mlflow_ngraph_fleet.engine import Engine
from mlflow_ngraph_fleet.fleet_run import FleetRun
from mlflow_ngraph_fleet.fleet_study import DeviceOutcome, FleetStudy

if TYPE_CHECKING:
    from mlflow_ngraph.analysis.pivot import Pivot
    from mlflow_ngraph.study import Study
    from mlflow_ngraph_fleet.description import Fleet

_MEANING = {0: "ok", 3: "some cells are not ok", 130: "interrupted", 143: "interrupted"}


def on_devices(file: Path | None, devices: Sequence[str], study: Study, **how: Any) -> int:
    """Run a study on devices of a described fleet.

    Parameters
    ----------
    file : Path | None
        The description; ``fleet.yaml`` by default.
    devices : Sequence[str]
        Names of the fleet; all of them by default.
    **how : Any
        As of `measure`.

    Returns
    -------
    int
        The exit code.
    """
    fleet = description.load(file or Path(description.DEFAULT_FILE))
    return measure(fleet, study, fleet.chosen(devices or [description.ALL]), **how)


def described(device: str) -> Path | None:
    """The description of a fleet in the working directory, where it has this device."""
    file = Path(description.DEFAULT_FILE)
    try:
        return file if device in description.load(file).devices else None
    except FleetError:
        return None


def measure(
    fleet: Fleet,
    study: Study,
    devices: Sequence[str],
    *,
    resume: str = "auto",
    tracking_uri: str | None = None,
    experiment: str | None = None,
    insecure: bool = False,
    detach: bool = False,
    as_json: bool = False,
) -> int:
    """Run a study on several devices at once.

    Parameters
    ----------
    resume, tracking_uri, experiment : str | None
        As of a study on this machine.
    insecure : bool
        Accept an engine that lets in everybody.
    detach : bool
        Leave when it is queued.

    Returns
    -------
    int
        The exit code.
    """
    with ending(), engines.connect(fleet, insecure=insecure) as engine:
        # After the engine has answered: no run is made for a study that cannot begin.
        place, run = fleet_plan.plan(
            fleet, study, devices, resume=resume, tracking_uri=tracking_uri, experiment=experiment
        )
        return _followed(engine, place, run, devices, detach=detach, as_json=as_json)


def come_back(name: str | None, *, insecure: bool, as_json: bool) -> int:
    """Go on following a study that an earlier client began.

    Parameters
    ----------
    name : str | None
        Its id; the newest one without.
    insecure : bool
        Accept an engine that lets in everybody.

    Returns
    -------
    int
        The exit code.
    """
    place = fleet_plan.find(name)
    kept = fleet_plan.read(place)
    run = FleetRun.known(kept["run_id"], kept["tracking_uri"])
    with ending(), engines.connect(fleet_plan.fleet_of(place), insecure=insecure) as engine:
        return _followed(engine, place, run, list(kept["devices"]), detach=False, as_json=as_json)


def _followed(
    engine: Engine, place: Path, run: FleetRun, devices: Sequence[str], *, detach: bool, as_json: bool
) -> int:
    messages = output.console(stderr=True)
    interrupt: KeyboardInterrupt | None = None
    with FleetTable(devices, messages) as table:
        study = FleetStudy(engine, place, run, table)
        try:
            study.submit()
            if detach:
                messages.print(f"queued; to come back: mlflow-ngraph fleet attach {study.id}", soft_wrap=True)
                return 0
            outcomes = study.follow()
        except KeyboardInterrupt as error:
            interrupt = error
            outcomes = _ended(study)
        except BaseException:
            run.close("FAILED", "")
            raise
    pivot = None if interrupt else _compared(run)
    run.close("KILLED" if interrupt else fleet_study.status_of(outcomes), "" if pivot is None else _markdown(pivot))
    _show(study.id, run, outcomes, pivot, as_json=as_json)
    if interrupt:
        raise interrupt
    return fleet_study.exit_code(outcomes)


def _ended(study: FleetStudy) -> list[DeviceOutcome]:
    """After an interrupt; another one leaves those devices to themselves that have not ended by then."""
    try:
        return study.cancel()
    except KeyboardInterrupt:
        return study.outcomes()


def _compared(run: FleetRun) -> Pivot | None:
    """Throughputs of all devices in one table; None where nothing was recorded."""
    from mlflow_ngraph.analysis import compare as comparing
    from mlflow_ngraph.analysis import results
    from mlflow_ngraph.analysis.pivot import Pivot
    from mlflow_ngraph.analysis.selection import Selection

    studies = run.studies()
    if not studies:
        return None
    try:
        selection = Selection(studies=tuple(studies))
        frame = results.select(selection, run.tracking_uri, [run.experiment])
        return Pivot.of(comparing.compare(frame, selection=selection)) if len(frame) else None
    except UsageError:
        return None


def _markdown(pivot: Pivot) -> str:
    from mlflow_ngraph.cli import comparison

    return comparison.text(pivot, "markdown", intervals=True)


def _show(name: str, run: FleetRun, outcomes: Sequence[DeviceOutcome], pivot: Pivot | None, *, as_json: bool) -> None:
    from mlflow_ngraph.cli import comparison

    if as_json:
        output.print_json(
            {
                "fleet_study": name,
                "run": run.address,
                "exit_code": fleet_study.exit_code(outcomes),
                "devices": [asdict(outcome) for outcome in outcomes],
                "comparison": pivot.about if pivot is not None else None,
            }
        )
        return
    console = output.console()
    if pivot is not None:
        comparison.show(pivot, intervals=False)
    rows = [(each.device, _meaning(each), each.study_id or "–") for each in outcomes]
    tables.show(console, Sheet("", ["device", prose("how it ended"), "study"], rows))
    for outcome in outcomes:
        if outcome.code in (1, 2) and outcome.last_lines:
            console.print(f"\nthe last lines of {outcome.device}:", style="bold")
            for line in outcome.last_lines:
                console.print(f"  {line}", soft_wrap=True)
    console.print(f"\nrun: {run.address}\nlogs: mlflow-ngraph fleet logs {name} --device NAME", soft_wrap=True)


def _meaning(outcome: DeviceOutcome) -> str:
    return outcome.reason or _MEANING.get(outcome.code, f"failed with exit code {outcome.code}")
