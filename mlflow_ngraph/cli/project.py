"""``mlflow-ngraph project``: hidden verb of ``MLproject``: run a study here or in its device's sub-project.

People use ``benchmark``.

MLflow passes every parameter as text and checks nothing; text that is empty stands for "as the study says".
"""

from __future__ import annotations

from typing import Any

import click

from mlflow_ngraph.cli import output
from mlflow_ngraph.cli.benchmark import RESUME, WHEN_BUSY, execute, study_options
from mlflow_ngraph.cli.request import DEFAULT_STUDY, overrides, requested
from mlflow_ngraph.errors import NO_GOOD_ANSWER, StudyError


@click.command(hidden=True)
@click.option("--study", default="")
@study_options
@click.option("--resume", default="")
@click.option("--when-busy", default="")
@click.option("--in-place", is_flag=True, help="Never go on to a sub-project: this is one.")
def project(
    study: str,
    resume: str,
    when_busy: str,
    in_place: bool,
    workloads: tuple[str, ...],
    compilers: tuple[str, ...],
    **options: Any,
) -> int:
    """Run a study as the MLflow run that 'mlflow run' created, in this environment or in that of its device."""
    from mlflow_ngraph.cli import sub_projects

    sub_projects.die_with_parent()
    given = {"workloads": ",".join(workloads), "compilers": ",".join(compilers), **options}
    with sub_projects.run_ends_with_process():
        return _run(study, resume, when_busy, given, in_place=in_place)


def _run(study: str, resume: str, when_busy: str, given: dict[str, Any], *, in_place: bool) -> int:
    from mlflow_ngraph.cli import sub_projects
    from mlflow_ngraph.devices.registry import create

    resume = _one_of("resume", resume or "auto", RESUME)
    when_busy = _one_of("when_busy", when_busy or "wait", WHEN_BUSY)
    wanted = requested(study or None, overrides(**given))
    profile = create(wanted.device)
    profile.check()
    missing = sub_projects.lacking([choice.name for choice in wanted.compilers])
    if missing and not in_place:
        names = ", ".join(missing)
        output.tell(f"this environment lacks {names}; going on in that of {profile.project or profile.name}")
        parameters = {key: value for key, value in {**given, "resume": resume, "when_busy": when_busy}.items() if value}
        parameters.pop("device", None)
        sub_projects.dispatch(profile, {"study": study or DEFAULT_STUDY, **parameters})
        return 0
    code = execute(wanted, as_json=False, resume=resume, when_busy=when_busy)
    # MLflow knows runs that finished and runs that failed. A study whose compilers refuse a model has finished, and
    # says so cell by cell; it did not fail.
    return 0 if code == NO_GOOD_ANSWER else code


def _one_of(key: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise StudyError(f"command line: {key}: expected {', '.join(allowed)}, found {value!r}")
    return value
