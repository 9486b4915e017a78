"""Assemble a `Report` from the tidy table: findings, environment, tables and figures in order. Writes no files."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import pandas as pd

from mlflow_ngraph.analysis import findings
from mlflow_ngraph.analysis.listing import Server
from mlflow_ngraph.errors import UsageError
from mlflow_ngraph.version import __version__
from mlflow_ngraph_report import (
    block_figures,
    depth_tables,
    environment,
    model_figures,
    model_tables,
    overview,
    ranks,
)
from mlflow_ngraph_report.beside import beside
from mlflow_ngraph_report.blocks import ABSENT, Block, Missing, Report, Section, Text
from mlflow_ngraph_report.prepared import Prepared, prepare

_READING = """\
Intervals are 95 % confidence intervals over rounds (Student's t, on the logarithmic scale for ratios). One that contains the \
neutral value is no claim of equality: it says that this many rounds cannot tell. An interval is about this machine, these \
engines and these inputs. Axes of figures end where their points do; an interval that would cover much of one is a thin line in the place of a band.
Of several studies of the same cell the latest counts. Speed-ups are paired: each compares an engine with {over} in \
the same rounds. Means over models, slopes and retentions combine cells that were measured independently.
Numbers come from the results tables of the study runs, and those follow from the raw samples that the runs carry: \
“mlflow-ngraph results recompute RUN” derives them again."""


def build(
    frame: pd.DataFrame,
    *,
    servers: Mapping[str, Server] | None = None,
    machines: Sequence[environment.Machine] | None = None,
    include: Collection[str] = (),
    paper: bool = False,
    scope: str = "",
    title: str = "Neural graph compilers: report",
) -> Report:
    """Build a report from results.

    Parameters
    ----------
    frame : pd.DataFrame
        The tidy table of `results.load`; all rows are used.
    servers : Mapping[str, Server] | None
        Sources of fingerprints and versions, by the names in the column ``tracking_uri``.
    machines : Sequence[environment.Machine] | None
        The machines, where no server describes them.
    include : Collection[str]
        Verdicts that count besides ``ok``.
    paper : bool
        Compare each table with the paper's.
    scope : str
        Options for commands in the report, so that they find the same results.

    Raises
    ------
    UsageError
        There are no results.
    TrackingError
        A server cannot be reached.
    """
    if frame.empty:
        raise UsageError("there are no results to report on")
    prepared = prepare(frame, include)
    if machines is None:
        machines = environment.machines(prepared.every, servers or {})
    theirs = beside(prepared, machines) if paper else {}
    survey = findings.survey(frame)
    sections = [
        Section("summary", "Summary", "", [overview.answer(survey.findings, prepared), overview.glance(prepared)]),
        _findings(survey, scope),
        Section("environment", "Environment", "", [environment.studies(prepared), environment.describe(machines)]),
        Section("models", "Models", "", _models(prepared, theirs)),
        Section("blocks", "Stacked blocks", "", _blocks(prepared, theirs)),
        *([_paper(theirs["all"])] if paper else []),
        Section("not-ok", "What did not end well", "", [overview.verdicts(prepared), overview.noise(prepared)]),
        Section(
            "reading",
            "How to read this",
            "",
            [Text("intervals", "Intervals and means", _READING.format(over=prepared.over).splitlines())],
        ),
    ]
    return Report(title, overview.subtitle(prepared), f"mlflow-ngraph {__version__}", _with_absent_ones_last(sections))


def _with_absent_ones_last(sections: Sequence[Section]) -> list[Section]:
    """Move missing parts to a section at the end."""
    absent = [block for section in sections for block in section.blocks if isinstance(block, Missing)]
    kept = [
        replace(section, blocks=[block for block in section.blocks if not isinstance(block, Missing)])
        for section in sections
    ]
    shown = [section for section in kept if section.blocks or section.introduction]
    return [*shown, *([Section(ABSENT, "Not in this report", "", absent)] if absent else [])]


def _models(prepared: Prepared, theirs: Mapping[str, Sequence[Block]]) -> list[Block]:
    return [
        model_tables.compile_seconds(prepared),
        *theirs.get("t3", ()),
        model_tables.sizes_of_models(prepared),
        *theirs.get("t4", ()),
        model_tables.families(prepared),
        *theirs.get("t6", ()),
        ranks.reversals(prepared),
        *model_figures.throughput(prepared),
        model_figures.speedups(prepared),
        model_figures.efficiency(prepared),
        *model_figures.resilience(prepared),
        model_figures.processors(prepared),
    ]


def _blocks(prepared: Prepared, theirs: Mapping[str, Sequence[Block]]) -> list[Block]:
    return [
        model_tables.sizes_of_blocks(prepared),
        *theirs.get("t5", ()),
        depth_tables.depth(prepared, "conv"),
        *theirs.get("t7", ()),
        depth_tables.depth(prepared, "mha"),
        *theirs.get("t8", ()),
        *block_figures.speedups(prepared),
        *block_figures.efficiency(prepared),
        *block_figures.resilience(prepared),
    ]


def _findings(survey: findings.Survey, scope: str) -> Section:
    blocks = [
        Text(
            f"finding-{number}",
            finding.title,
            [finding.text],
            finding.command_in(scope),
            pd.DataFrame(finding.evidence),
        )
        for number, finding in enumerate(survey.findings, 1)
    ]
    about = (
        f"What was gained first, then the most important of the rest. {survey.tested} tested together, so that chance brings about a false one in at most "
        "5 of 100 reports."
    )
    return Section("findings", "Findings", about if blocks else f"None. {about.partition('. ')[2]}", blocks)


def _paper(blocks: Sequence[Block]) -> Section:
    about = (
        "Furutanpey, Walser, Raith, Frangoudis, Dustdar: Leveraging Neural Graph Compilers in Machine Learning Research for "
        "Edge-Cloud Systems (2025). Its tables stand beside the ones above, number by number; here is the sum of it."
    )
    return Section("paper", "Beside the paper", about, blocks)
