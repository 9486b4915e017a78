"""``mlflow-ngraph fleet up``, ``status``, ``down`` and ``doctor``: start, show, stop and check a fleet's machines."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mlflow_ngraph.cli import output, tables
from mlflow_ngraph.cli.lists import items
from mlflow_ngraph.cli.waiting import waiting
from mlflow_ngraph.errors import FleetError, NGraphError
from mlflow_ngraph.tables.sheet import Cell, Column, Head, Sheet, number, prose
from mlflow_ngraph_fleet import description

if TYPE_CHECKING:
    from mlflow_ngraph_fleet.description import Fleet
    from mlflow_ngraph_fleet.engine import KnownJob
    from mlflow_ngraph_fleet.nodes import Answer, Machine

F = TypeVar("F", bound=Callable[..., Any])

_JOINS_S = 90.0
_LEAST_DISK_GB, _LEAST_MEMORY_GB, _MOST_SKEW_S = 5.0, 1.0, 5.0
_BY_RAY = "With Slurm, whoever runs the cluster starts and stops it."


def fleet_option(command: F) -> F:
    """Option that names the fleet."""
    return click.option(
        "--fleet",
        "file",
        type=click.Path(dir_okay=False, path_type=Path),
        default=description.DEFAULT_FILE,
        show_default=True,
        help="Description of the fleet.",
    )(command)


@click.command()
@fleet_option
@click.option("--device", "devices", metavar="NAME,...", help="Only these, of a fleet whose head is up.")
def up(file: Path, devices: str | None) -> int:
    """Start the engine on every machine of the fleet; where SSH does not reach, print what to type there."""
    from mlflow_ngraph_fleet import connection, nodes, ray_engine

    fleet = _with_ray(file)
    machines = nodes.machines(fleet, fleet.chosen(items(devices)) if devices else None)
    token = nodes.token(fleet)
    console, failed = output.console(), False
    # The head first: without it no other machine has anything to join.
    for batch in (machines[:1], machines[1:]) if not devices else (machines,):
        with waiting(f"starting {', '.join(machine.name for machine in batch)}", logged=True):
            answers = list(nodes.ask(batch, "up", token=token))
        for answer in answers:
            failed |= bool(answer.problem)
            _say(answer, f"{answer.content.get('state')}, kept up by {answer.content.get('by')}")
        if failed:
            return 1
    path = ray_engine.token_path(fleet)
    for machine in (each for each in machines if not each.node.ssh):
        console.print(f"{machine.name}: copy {path} there as ~/{path.name} (chmod 600), then type:", style="bold")
        console.print(f"  {nodes.by_hand(machine, path)}", soft_wrap=True)
    reached = [device for machine in machines if machine.node.ssh for device in machine.config["devices"]]
    if fleet.head is not None and (fleet.head.ssh or fleet.head.address):
        with waiting("waiting for the devices to join", logged=True), connection.connect(fleet) as ray:
            missing = _await_all(lambda: [name for name in reached if ray.nodes().get(name) != "alive"])
        if missing:
            raise FleetError(
                f"{', '.join(missing)}: not joined within {_JOINS_S:.0f} s; mlflow-ngraph fleet doctor says more"
            )
        console.print(f"ready: {', '.join(reached)}")
    return 0


@click.command()
@fleet_option
@click.option("--device", "devices", metavar="NAME,...", help="Only these.")
def down(file: Path, devices: str | None) -> int:
    """Stop the engine on every machine, with all that it started, and prove that nothing is left.

    Studies that run are ended, and go on when they are started again. What was measured stays.
    """
    from mlflow_ngraph_fleet import nodes

    fleet = _with_ray(file)
    machines = nodes.machines(fleet, fleet.chosen(items(devices)) if devices else None)
    with waiting("stopping the engine", logged=True):
        # The head last, so that nobody misses it.
        answers = [*nodes.ask(machines[1:], "down"), *nodes.ask(machines[:1], "down")]
    clean = True
    for answer in answers:
        left = [*answer.content.get("left", ()), *(f"port {port} is open" for port in answer.content.get("ports", ()))]
        clean &= not left and not answer.problem
        ended = answer.content.get("ended", 0)
        _say(answer, f"LEFT: {'; '.join(left)}" if left else f"nothing is left; {ended} processes were ended")
    for machine in (each for each in machines if not each.node.ssh):
        clean = False
        output.console().print(
            f"{machine.name}: SSH does not reach it: end its ray start there, and see that it is gone"
        )
    return 0 if clean else 1


@click.command()
@fleet_option
@click.option("--insecure", is_flag=True, help="Use an engine that lets in everybody.")
@output.json_option
def status(file: Path, insecure: bool, as_json: bool) -> int:
    """Show every machine: whether it has joined, who measures on it, what waits for it, and versions that differ."""
    from mlflow_ngraph_fleet import connection as engines
    from mlflow_ngraph_fleet import nodes

    fleet = description.load(file)
    joined: Mapping[str, str] = {}
    jobs: list[KnownJob] = []
    problem = ""
    try:
        with waiting("asking the engine"), engines.connect(fleet, insecure=insecure) as engine:
            joined, jobs = engine.nodes(), engine.recover()
    except NGraphError as error:
        problem = str(error)
    answers = {}
    with suppress(NGraphError), waiting("asking the machines"):
        answers = {answer.machine.name: answer for answer in nodes.ask(nodes.machines(fleet), "status")}
    rows = [_row(fleet, name, joined, jobs, answers) for name in fleet.devices]
    notes = [*([problem] if problem else []), *_differing(answers)]
    if as_json:
        output.print_json({"fleet": fleet.name, "engine": fleet.engine, "devices": rows, "notes": notes})
        return 1 if problem else 0
    columns: list[Head] = [
        "device",
        "host",
        "engine",
        prose("measures"),
        number("queue"),
        "Python",
        "Ray",
        Column("machine", spare=1),
    ]
    keys = ("device", "host", "engine", "holder", "waiting", "python", "ray", "machine")
    tables.show(output.console(), Sheet("", columns, [[row[key] for key in keys] for row in rows]))
    for note in notes:
        output.console(stderr=True).print(f"note: {note}", style="yellow", soft_wrap=True)
    return 1 if problem else 0


@click.command()
@fleet_option
def doctor(file: Path) -> int:
    """Check what a fleet needs, here and on its machines; changes nothing."""
    from mlflow_ngraph_fleet import nodes, ray_engine

    fleet = description.load(file)
    checks: list[tuple[str, bool, str]] = []

    def check(what: str, question: Callable[[], str]) -> None:
        try:
            checks.append((what, True, question()))
        except NGraphError as error:
            checks.append((what, False, str(error)))

    machines: list[Machine] = []
    if fleet.engine == "ray":
        check("Ray's client", _ray_client)
        check("token", lambda: _token_file(ray_engine.token_path(fleet)))
        check(
            "versions of Ray",
            lambda: ", ".join({str(each.config["ray"]) or "as it is there" for each in nodes.machines(fleet)}),
        )
    with suppress(NGraphError):
        machines = nodes.machines(fleet)
    unreached = [machine.name for machine in machines if not machine.node.ssh]
    checks.extend((name, True, "not reached by SSH: nothing was checked there") for name in unreached)
    answers = list(nodes.ask(machines, "status"))
    for answer in answers:
        problems = [answer.problem] if answer.problem else _machine_problems(answer)
        said = f"{answer.content.get('machine')}, Python {answer.content.get('python')}, {answer.content.get('memory_gb')} GB free memory"
        checks.append((answer.machine.name, not problems, "; ".join(problems) or said))
    versions = _differing({answer.machine.name: answer for answer in answers if not answer.problem})
    checks.extend(("versions", False, note) for note in versions)
    marks = {True: Cell("ok", tone="good"), False: Cell("problem", tone="bad")}
    rows = [(marks[fine], what, said) for what, fine, said in checks]
    tables.show(output.console(), Sheet("", ["", "what", prose("")], rows))
    return 0 if all(fine for _, fine, _ in checks) else 1


def _with_ray(file: Path) -> Fleet:
    fleet = description.load(file)
    if fleet.engine != "ray":
        raise FleetError(f"{file}: engine {fleet.engine} is not started by this command. {_BY_RAY}")
    return fleet


def _token_file(path: Path) -> str:
    if not path.exists():
        return "there is none yet: fleet up makes it"
    description.read_secret(path)
    return f"{path}, for its owner alone"


def _ray_client() -> str:
    from importlib.metadata import version

    from mlflow_ngraph_fleet.ray_engine import client_class

    client_class()
    return f"Ray {version('ray')}"


def _say(answer: Answer, said: str) -> None:
    text = answer.problem or said
    output.console().print(f"{answer.machine.name}: {text}", style="red" if answer.problem else None, soft_wrap=True)


def _await_all(missing: Callable[[], Sequence[str]]) -> Sequence[str]:
    deadline = time.monotonic() + _JOINS_S
    while (names := missing()) and time.monotonic() < deadline:
        time.sleep(1)
    return names


def _row(
    fleet: Fleet, name: str, joined: Mapping[str, str], jobs: Sequence[KnownJob], answers: Mapping[str, Answer]
) -> dict[str, Any]:
    device = fleet.devices[name]
    head = fleet.head
    answer = answers.get("head" if head is not None and device.host == head.host else name)
    about = answer.content if answer is not None else {}
    waiting_jobs = Counter(job.device for job in jobs if not job.state.ended)
    return {
        "device": name,
        "host": device.host,
        "profile": fleet.profile(name),
        "labels": dict(device.labels),
        "engine": joined.get(name, "not joined"),
        "holder": about.get("holder") or ("nobody" if about else "not asked"),
        "waiting": waiting_jobs[name],
        "python": about.get("python"),
        "ray": about.get("ray"),
        "machine": about.get("cpu") or about.get("machine"),
        "fingerprint": about.get("fingerprint"),
        "problem": answer.problem if answer is not None else "",
    }


def _differing(answers: Mapping[str, Answer]) -> list[str]:
    """Versions that Ray wants to be equal, and are not."""
    notes = [f"{name}: {answer.problem}" for name, answer in answers.items() if answer.problem]
    for key, what, parts in (("ray", "Ray", 3), ("engine_python", "the engine's Python", 2)):
        known = {
            name: ".".join(str(answer.content[key]).split(".")[:parts])
            for name, answer in answers.items()
            if key in answer.content
        }
        if len(set(known.values())) > 1:
            notes.append(
                f"{what} differs, and machines with another one cannot join: {', '.join(f'{name} {value}' for name, value in known.items())}"
            )
    return notes


def _machine_problems(answer: Answer) -> list[str]:
    about = answer.content
    problems = []
    if tuple(map(int, about["python"].split(".")[:2])) < (3, 10):
        problems.append(f"Python {about['python']}: 3.10 or later is needed")
    if about["free_gb"] < _LEAST_DISK_GB:
        problems.append(f"{about['free_gb']} GB of disk are free: environments and engines need more")
    if about["memory_gb"] < _LEAST_MEMORY_GB:
        problems.append(f"{about['memory_gb']} GB of memory are free: the engine takes a third of one")
    if abs(about["time"] - time.time()) > _MOST_SKEW_S:
        problems.append(f"its clock is {about['time'] - time.time():+.0f} s off")
    if about["systemd"] and not about["linger"]:
        problems.append("the engine ends when its user logs out: type loginctl enable-linger there")
    if about.get("engine_problem"):
        problems.append(str(about["engine_problem"]))
    return problems
