"""``mlflow-ngraph benchmark``: run a study here or on a fleet and print its results, or print its plan only."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import click

from mlflow_ngraph import home as home_directory
from mlflow_ngraph.addresses import shown
from mlflow_ngraph.cli import output, study_plan, tables
from mlflow_ngraph.cli.filters import bound_options
from mlflow_ngraph.cli.lists import items
from mlflow_ngraph.cli.request import DEFAULT_STUDY, overrides, requested
from mlflow_ngraph.errors import DependencyError, DeviceBusyError, DeviceError, UnknownNameError, UsageError
from mlflow_ngraph.objectives import BOUNDS, OBJECTIVES
from mlflow_ngraph.processes.interruption import Interrupted

if TYPE_CHECKING:
    from mlflow_ngraph.recording.outcome import Outcome
    from mlflow_ngraph.study import Study

Resume = Literal["auto", "always", "never"]
_FLEET = "mlflow-ngraph-fleet"
"""The plugin of studies on several devices."""
RESUME = ("auto", "always", "never")
WHEN_BUSY = ("wait", "refuse")

F = TypeVar("F", bound=Callable[..., Any])


class _BenchmarkCommand(click.Command):
    """Lets ``--resume`` stand alone, also right before the name of a study."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        plain = list(args)
        for index, text in enumerate(plain):
            follower = plain[index + 1] if index + 1 < len(plain) else None
            if text == "--resume" and follower not in RESUME:
                plain[index] = "--resume=always"
        return super().parse_args(ctx, plain)


def study_options(command: F) -> F:
    """The options that replace a key of the study."""
    for option in reversed(
        (
            click.option(
                "--device",
                metavar="NAME,...",
                help="Device profile: xeon, gpu, orin or host. With --fleet: devices of the fleet, or all.",
            ),
            click.option(
                "--build-for",
                metavar="DEVICE[:ARCH]",
                help="Compile for another device, such as gpu:sm89, and measure nothing.",
            ),
            click.option(
                "--workloads", metavar="REF,...", multiple=True, help="Models, such as timm:resnet18,onnx:model.onnx."
            ),
            click.option(
                "--compilers",
                metavar="NAME,...",
                multiple=True,
                help="Compilers, with flags as openvino?num_streams=2.",
            ),
            click.option(
                "--baseline", metavar="NAME", help="What speed-ups are over: one of the compilers; identity by default."
            ),
            click.option("--batch-sizes", metavar="N,...", help="Batch sizes, such as 1,2,4,8."),
            click.option("--precision", metavar="NAME,...", help="fp32, tf32, bf16 or fp16."),
            click.option(
                "--repetitions",
                metavar="N|auto",
                help="Timed repetitions of a cell, or as many as its interval needs.",
            ),
            click.option("--threads", metavar="N|all|default", help="Threads of every runtime."),
            click.option(
                "--mode", metavar="sync|async", help="One request in flight, or as many as the runtime wants."
            ),
            click.option(
                "--arrivals",
                metavar="auto|RATE,...",
                help="Also offer requests that arrive by themselves, at these rates per second.",
            ),
            click.option(
                "--max-p99-ms",
                metavar="MS",
                help="Look for the highest rate of arrivals whose 99th percentile of the latency is within this.",
            ),
            click.option(
                "--purpose",
                metavar="characterise|decide",
                help="Measure every cell precisely, or only until it is clear which is the best of each workload.",
            ),
            click.option(
                "--objective",
                metavar="NAME",
                help=f"With --purpose decide: {', '.join(OBJECTIVES)}; throughput by default.",
            ),
            bound_options(*BOUNDS),
            click.option("--within", metavar="TIME", help="All the time that it may take, such as 90s, 5m or 1h30m."),
            click.option("--seed", metavar="N", help="Seeds inputs and the order of lanes."),
            click.option(
                "--cache",
                metavar="local|server|off",
                help="Reuse engines of this machine, also those of the tracking server, or none.",
            ),
        )
    ):
        command = option(command)
    return command


@click.command(cls=_BenchmarkCommand)
@click.argument("study", required=False)
@study_options
@click.option(
    "--resume",
    type=click.Choice(RESUME),
    default="auto",
    metavar="[auto|always|never]",
    help="Go on with an unfinished run of the same study: if there is one (auto, the default), it must exist (always; "
    "also plain --resume), or start anew (never).",
)
@click.option("--fresh", is_flag=True, help="Start anew: the same as --resume never.")
@click.option("--tracking-uri", metavar="URI", help="Where to record; by default what MLflow is configured to use.")
@click.option("--experiment", metavar="NAME", help="MLflow experiment that holds the runs.")
@click.option("--offline", is_flag=True, help="Record nothing now; 'mlflow-ngraph study sync' does it later.")
@click.option(
    "--when-busy",
    type=click.Choice(WHEN_BUSY),
    default="wait",
    help="While somebody else measures on this machine: wait for the end (the default), or refuse to start.",
)
@click.option("--home", type=click.Path(file_okay=False, path_type=Path), help="Where journals and engines are kept.")
@click.option(
    "--fleet",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Description of a fleet; fleet.yaml where --device names several devices or all, and with --detach.",
)
@click.option("--detach", is_flag=True, help="With a fleet: leave when it is queued; 'fleet attach' comes back.")
@click.option("--insecure", is_flag=True, help="With a fleet: use an engine that lets in everybody.")
@click.option("--dry-run", is_flag=True, help="Print lanes, cells and an estimate of the time; run nothing.")
@output.json_option
def benchmark(
    study: str | None,
    resume: Resume,
    fresh: bool,
    tracking_uri: str | None,
    experiment: str | None,
    offline: bool,
    when_busy: str,
    home: Path | None,
    dry_run: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Compile, verify and measure what STUDY describes, and record it in MLflow.

    STUDY is a ready-made study (see 'mlflow-ngraph study list') or a YAML file; 'quick' if it is left out. Options
    replace keys of the study.
    """
    fleet, detach, insecure = (options.pop(name) for name in ("fleet", "detach", "insecure"))
    devices = items(options["device"])
    if fleet is not None or detach or insecure or len(devices) > 1 or devices == ["all"]:
        for flag, given in (
            ("--dry-run", dry_run),
            ("--offline", offline),
            ("--home", home),
            ("--build-for", options["build_for"]),
        ):
            if given:
                raise UsageError(f"{flag} is for this machine, and not for a fleet")
        return int(
            _of_fleet("measure")(
                fleet,
                devices,
                requested(study, overrides(**{**options, "device": None})),
                as_json=as_json,
                resume="never" if fresh else resume,
                tracking_uri=tracking_uri,
                experiment=experiment,
                insecure=insecure,
                detach=detach,
            )
        )
    with _pointing_at_the_fleet(devices):
        wanted = requested(study, overrides(**options))
        if dry_run:
            return study_plan.show(wanted, home, as_json=as_json)
        return execute(
            wanted,
            as_json=as_json,
            resume="never" if fresh else resume,
            home=home,
            tracking_uri=tracking_uri,
            experiment=experiment,
            offline=offline,
            when_busy=when_busy,
        )


benchmark.help = (benchmark.help or "").replace("'quick'", f"'{DEFAULT_STUDY}'")


@contextmanager
def _pointing_at_the_fleet(devices: list[str]) -> Iterator[None]:
    """Add to an error about another device that the description of a fleet here has it."""
    try:
        yield
    except (DeviceError, UnknownNameError) as error:
        if isinstance(error, DeviceBusyError) or len(devices) != 1:
            raise
        file = None
        with suppress(DependencyError):  # no plugin, no fleet
            file = _of_fleet("described")(devices[0])
        if file is None:
            raise
        raise DeviceError(f"{error}. {file} has a device {devices[0]!r}: to run there, add --fleet {file}") from error


def _of_fleet(name: str) -> Callable[..., Any]:
    """A function of the plugin that runs studies on several devices."""
    from mlflow_ngraph.entry_points import load_plugin

    return cast("Callable[..., Any]", load_plugin(_FLEET, "mlflow_ngraph.fleet", name, "a study on several devices"))


def execute(study: Study, *, as_json: bool, home: Path | None = None, **how: Any) -> int:
    """Run a study with the progress on standard error and the results on standard output; returns the exit code."""
    from mlflow_ngraph.cli.progress import Progress, State
    from mlflow_ngraph.devices.registry import create
    from mlflow_ngraph.execute.plan import make
    from mlflow_ngraph.runner import run_study, timing_history

    plan = make(study, create(study.device), timing_history(home))
    messages = output.console(stderr=True)
    for note in study_plan.notes(plan, home):
        messages.print(f"note: {note}", style="yellow", markup=False, soft_wrap=True)
    place = how.get("tracking_uri"), how.get("experiment")
    try:
        with Progress(State.of(plan), messages) as progress:
            outcome = run_study(study, observer=progress, home=home, **how)
    except Interrupted as error:
        if error.measured is not None:
            error.advice = f"everything is measured; to record what is missing: {_sync_command(error.measured, *place)}"
        raise
    show_outcome(outcome, as_json=as_json, tracking_uri=place[0], experiment=place[1])
    return outcome.exit_code


def show_outcome(
    outcome: Outcome, *, as_json: bool, tracking_uri: str | None = None, experiment: str | None = None
) -> None:
    """Print the results, best first, where they are recorded, and conclusions.

    ``tracking_uri`` and ``experiment`` are as they were given, for the command that records the study later.
    """
    from mlflow_ngraph.analysis.closing import answers
    from mlflow_ngraph.tables import races
    from mlflow_ngraph.tables.summary import references, sheet, summary_rows

    with home_directory.used(outcome.directory.parent.parent):  # commands that are printed name files in it
        found = answers(outcome.record)
    if as_json:
        output.print_json(
            {
                "study_id": outcome.record.id,
                "directory": str(outcome.directory),
                "exit_code": outcome.exit_code,
                "where": dict(outcome.where),
                "unrecorded": outcome.unrecorded,
                "answers": found,
                "refers_to": references(outcome.record),
                "rows": [asdict(row) for row in summary_rows(outcome.record)],
                "races": dict(outcome.record.races),
                "left_out": dict(outcome.record.left_out),
            }
        )
        return
    console = output.console()
    tables.show(console, sheet(outcome.record))
    for line in races.results(outcome.record):
        console.print(line, markup=False, soft_wrap=True)
    later = _sync_command(outcome.directory, tracking_uri, experiment)
    console.print()
    for what, where in {"directory": outcome.directory, **outcome.where}.items():
        console.print(f"{what.replace('_', ' ')}: {where}", soft_wrap=True)
    if outcome.unrecorded:
        console.print(
            f"not everything is recorded: {outcome.unrecorded}; later: {later}",
            style="yellow",
            soft_wrap=True,
        )
    console.print()
    for answer in found:
        console.print(answer, style="bold", markup=False, soft_wrap=True)
    for line in _next_steps(outcome, later):
        console.print(line, markup=False, soft_wrap=True)


def _next_steps(outcome: Outcome, later: str) -> Iterator[str]:
    """Commands for a study that is not recorded yet, or was measured before."""
    from mlflow_ngraph.execute import replay, study_directories

    if outcome.unrecorded:
        return
    if not outcome.where:
        yield f"not recorded yet: {later}"
    elif (earlier := study_directories.measured_before(outcome.directory)) is not None:
        known = {lane.lane.workload for lane in replay.outline(earlier.directory).lanes.values()}
        if known.isdisjoint(lane.lane.workload for lane in outcome.record.lanes.values()):
            return  # studies of one name need not have anything in common
        name = shlex.quote(earlier.name)
        yield (
            f"measured before as {earlier.study_id}; compare the two with: mlflow-ngraph results gate {name}, or "
            f"mlflow-ngraph results diff {name}~1 {name}"
        )


def _sync_command(directory: Path, tracking_uri: str | None, experiment: str | None) -> str:
    """The command that records a study where it was to be recorded; a login in the address is left to the user."""
    places = {"--tracking-uri": tracking_uri and shown(tracking_uri), "--experiment": experiment}
    given = [word for option, value in places.items() if value for word in (option, value)]
    return shlex.join(["mlflow-ngraph", "study", "sync", _typed(directory), *given])


def _typed(directory: Path) -> str:
    """Name of a study in the default home, or else its directory."""
    return directory.name if directory.parent.parent == home_directory.location() else str(directory)
