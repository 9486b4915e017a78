"""``mlflow-ngraph engine pull``: download and verify an engine, by name or the best that fits this machine."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mlflow_ngraph import objectives
from mlflow_ngraph.cli import output
from mlflow_ngraph.cli.filters import Asked, FilteredCommand, bound_options, filter_options, tell
from mlflow_ngraph.cli.lists import items
from mlflow_ngraph.cli.trust_options import run_option, trust_option
from mlflow_ngraph.cli.verify import show_checks, show_trust
from mlflow_ngraph.errors import NO_GOOD_ANSWER, UsageError
from mlflow_ngraph.objectives import Limit

if TYPE_CHECKING:
    from mlflow_ngraph.analysis.listing import FoundRuns
    from mlflow_ngraph.analysis.ranking import EngineQuestion, Ranking
    from mlflow_ngraph.analysis.selection import Selection
    from mlflow_ngraph.release.best import BestEngine
    from mlflow_ngraph.release.pulling import Pulled
    from mlflow_ngraph.tracking.sources import EngineFilter

F = TypeVar("F", bound=Callable[..., Any])

HERE = "here"
_OF_RUN = ("workloads", "compilers", "precision", "batch_sizes")
"""Filters that also choose among the engines of a run."""
_BOUNDS = ("max_latency_ms", "max_cpu_percent", "max_memory_mb", "max_size_mb", "max_energy_j", "min_throughput")


def _question_options(command: F) -> F:
    """Filters of all verbs with help for this one, and the bounds."""
    filtered = filter_options(
        command,
        lines={
            "workloads": "The model.",
            "devices": "Only what was measured on these devices; by default, and with 'here', on any. It has to fit "
            "this machine either way.",
        },
    )
    return bound_options(*_BOUNDS)(filtered)


@click.command(cls=FilteredCommand)
@click.argument("source", required=False)
@click.option(
    "--to", "target", type=click.Path(file_okay=False, path_type=Path), metavar="DIR", help="The directory it becomes."
)
@click.option(
    "--objective", metavar="NAME",
    help="What the best engine has most or least of: throughput (default), latency, cpu, memory, energy, size, or a metric.",
)  # fmt: skip
@_question_options
@click.option("--accept-undecided", is_flag=True,
              help="Bring the engine that looks best although another one could be better.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Say which engine is the best and fits this machine; bring nothing.")
@click.option("--force", is_flag=True, help="Replace an engine in DIR that is another one, or damaged.")
@trust_option
@run_option
@click.option("--home", type=click.Path(file_okay=False, path_type=Path), help="Where journals and engines are kept.")
@output.json_option
def pull(
    source: str | None,
    target: Path | None,
    objective: str | None,
    accept_undecided: bool,
    dry_run: bool,
    force: bool,
    trust: str | None,
    run: bool,
    home: Path | None,
    as_json: bool,
    **given: Any,
) -> int:
    """Download a measured engine, verify its files and its outputs, and put it into its place.

    SOURCE is models:/NAME@ALIAS, models:/NAME/VERSION, models:/MODEL_ID, or the id of a study or lane run, whose engines
    --workloads, --compilers, --precision and --batch-sizes choose from. Without SOURCE it is the best measured engine
    that fits this machine: of all that the filters and bounds let through, the first in the order of --objective.

    Without --to the engine becomes a directory in 'pulled' below the home directory. A call that was interrupted is
    taken up where it stopped, and an engine that is there is verified, not brought again. The exit code is 3, and nothing
    is brought, where another one could be better by more than 3 %, for all that can be told.
    """
    limits = objectives.limits({name: given.pop(name) for name in _BOUNDS})
    if source is not None and (objective or limits or dry_run or accept_undecided):
        raise UsageError(
            "--objective, bounds, --dry-run and --accept-undecided are for the best of all: leave them out, or SOURCE"
        )
    answer = _ask(given, objective, limits, trust, home) if source is None else None
    if answer is not None and not as_json:
        from mlflow_ngraph.cli.best_engine import show

        show(answer)
    undecided = answer is not None and bool(answer.rivals) and not accept_undecided
    if dry_run or undecided:
        if as_json:
            output.print_json(_document(None, answer))
        elif undecided:
            output.console().print("--accept-undecided brings it nevertheless", soft_wrap=True)
        return NO_GOOD_ANSWER if undecided else 0
    how = {"target": target, "force": force, "trust": trust, "run": run, "home": home}
    pulled = _pull(source, answer, given, **how, **({} if as_json else {"tell": show_trust}))
    if as_json:
        output.print_json(_document(pulled, answer))
    else:
        _show(pulled)
    return 0


def _ask(
    given: dict[str, Any], objective: str | None, limits: list[Limit], trust: str | None, home: Path | None
) -> BestEngine:
    from mlflow_ngraph.analysis.ranking import EngineQuestion

    given["devices"] = [name for name in items(given["devices"]) if name != HERE]
    asked = Asked(given)
    selection = asked.selection()
    with ThreadPoolExecutor(1, "ngraph-listing") as pool:
        # The server takes about as long to answer as what reads manifests takes to import.
        listing = pool.submit(asked.find, guess=False)
        from mlflow_ngraph.engines import trust as trusting
        from mlflow_ngraph.release import best

        rules = trusting.load(trust, home)
        runs = listing.result()
    ranking = _ranking(asked, selection, EngineQuestion(objective or "throughput", tuple(limits)), runs)
    return best.answer(ranking, {server.name: server.uri for server in runs.servers}, rules)


def _ranking(asked: Asked, selection: Selection, question: EngineQuestion, runs: FoundRuns) -> Ranking:
    """Answer with the best engines: cached on this machine, or a new one."""
    from mlflow_ngraph.analysis import answer_cache
    from mlflow_ngraph.analysis.ranking import Ranking

    def ranked() -> Ranking:
        from mlflow_ngraph.analysis.ranking import rank

        frame = asked.read(question.columns(), runs)
        selection.check(frame)
        return rank(selection.of(frame), question)

    plain_question = {"selection": asdict(selection), **asdict(question)}
    ranking = answer_cache.answer(plain_question, runs if asked.cache else None, ranked, Ranking.from_plain)
    tell(runs)
    return ranking


def _pull(source: str | None, answer: BestEngine | None, given: dict[str, Any], **how: Any) -> Pulled:
    from mlflow_ngraph.cli import transfers
    from mlflow_ngraph.release.pulling import pull_engine

    with transfers.arriving("pulling") as progress:
        if answer is not None:
            return pull_engine(answer.remote, progress=progress, **how)
        assert source is not None
        uri, wanted = _of_source(source, given)
        return pull_engine(source, tracking_uri=uri, wanted=wanted, progress=progress, **how)


def _of_source(source: str, given: dict[str, Any]) -> tuple[str | None, EngineFilter]:
    """The server, and the filter of a run's engines."""
    from mlflow_ngraph.tracking.sources import EngineFilter

    given = {**given, "devices": [name for name in items(given["devices"]) if name != HERE]}
    unfit = [name for name, value in given.items() if value and name not in (*_OF_RUN, "tracking_uri", "no_cache")]
    if unfit:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in unfit)
        raise UsageError(f"{options} chooses among all engines: leave it out, or leave out {source}")
    asked = Asked(given)
    selection = asked.selection()
    if asked.uris and len(asked.uris) > 1:
        raise UsageError(f"--tracking-uri: {source} is on one server: name that one")
    wanted = EngineFilter(selection.workloads, selection.compilers, selection.precisions, selection.batch_sizes)
    return (asked.uris[0] if asked.uris else None), wanted


def _show(pulled: Pulled) -> None:
    """Show the directory of an engine, and the checks that it passed after those of its trust."""
    console = output.console()
    said = {
        "pulled": f"pulled from {pulled.remote.shown}",
        "replaced": f"pulled from {pulled.remote.shown}, in the place of what was there",
        "unchanged": f"was there already, and is {pulled.remote.shown}; nothing was brought",
    }[pulled.state]
    console.print(said, markup=False, soft_wrap=True)
    show_checks(pulled.checks[1:], console)
    console.print(str(pulled.directory), markup=False, soft_wrap=True)


def _document(pulled: Pulled | None, answer: BestEngine | None) -> dict[str, Any]:
    from mlflow_ngraph.cli.best_engine import document

    answer_document = document(answer) if answer is not None else None
    if pulled is None:
        return {"directory": None, "state": None, "answer": answer_document}
    manifest = pulled.package.manifest
    spec = manifest.spec
    return {
        "directory": str(pulled.directory),
        "state": pulled.state,
        "manifest_sha256": pulled.package.digest,
        "model_id": pulled.remote.model_id,
        "workload": spec.workload,
        "label": manifest.origin.label,
        "compiler": spec.compiler,
        "precision": spec.target.precision,
        "precision_in_force": manifest.precision_in_force,
        "batch_sizes": spec.batch_sizes,
        "size_bytes": manifest.size_bytes,
        "checks": [{"check": check.name, "status": check.status, "found": check.found} for check in pulled.checks],
        "answer": answer_document,
    }
