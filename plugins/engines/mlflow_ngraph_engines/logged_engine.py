"""Load a logged engine with manifest and results, check its files against its run's record, and find its rivals."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pandas as pd

from mlflow_ngraph.analysis import listing, results
from mlflow_ngraph.analysis.compare import latest
from mlflow_ngraph.analysis.selection import Selection
from mlflow_ngraph.devices.registry import accelerator
from mlflow_ngraph.engines.package import check_files
from mlflow_ngraph.engines.probe import read_probe
from mlflow_ngraph.errors import EngineError
from mlflow_ngraph.execute import journal
from mlflow_ngraph.metrics import COLUMNS, PROFILE
from mlflow_ngraph.tables import distinct
from mlflow_ngraph.tables.columns import typed
from mlflow_ngraph.tracking import download, sources
from mlflow_ngraph.tracking.content import engine_digest
from mlflow_ngraph.tracking.schema import Tag
from mlflow_ngraph.tracking.sources import EngineFilter
from mlflow_ngraph.verdicts import Verdict
from mlflow_ngraph_engines import champion

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel

    from mlflow_ngraph.analysis.listing import FoundRuns
    from mlflow_ngraph.analysis.undecided import Rival
    from mlflow_ngraph.engines.manifest import Manifest
    from mlflow_ngraph.tracking.download import Remote

_RUN = re.compile(r"(?:runs:/)?[0-9a-f]{32}/?")


@dataclass(frozen=True)
class LoggedEngine:
    """A logged engine."""

    model: LoggedModel
    remote: Remote
    manifest: Manifest
    """Manifest; its digest matches the server's."""
    cells: pd.DataFrame
    """Rows of the tidy table, one per batch size; from the manifest where the study is not on this server."""

    @property
    def model_id(self) -> str:
        return str(self.model.model_id)

    @property
    def name(self) -> str:
        """Label, compiler with flags, and precision."""
        row = self.cells.iloc[0]
        return f"{row['label']} by {row['compiler_label']}, {row['precision']}"

    @property
    def doubts(self) -> list[str]:
        """Cells that are not ``ok``, with reasons."""
        doubts = []
        for row in self.cells.to_dict("records"):
            if row["verdict"] != str(Verdict.OK):
                reason = f" ({row['reason']})" if isinstance(row["reason"], str) and row["reason"] else ""
                doubts.append(f"its verdict at batch {row['batch']} is {row['verdict']}{reason}")
        return doubts


def load(client: MlflowClient, model_id: str, tracking_uri: str) -> LoggedEngine:
    """Load by id of the LoggedModel, within `connection.talking`.

    Raises `EngineError` if it is no engine, its files are not complete, or its manifest is not the one that was logged.
    """
    model = client.get_logged_model(model_id)
    if str(model.status) != "READY":
        raise EngineError(f"engine {model_id} is not whole: its status is {model.status}")
    remote = download.of_model(model, tracking_uri)
    manifest, _ = download.manifest(remote)
    return LoggedEngine(model, remote, manifest, _cells(model, manifest, tracking_uri))


def check_whole(client: MlflowClient, model: LoggedModel, remote: Remote) -> None:
    """Bring an engine here, and compare all of it with its manifest and with what its run recorded; nothing of it runs.

    Raises `EngineError` if a file is not what was logged or has no place in a package, or the study has recorded
    another engine.
    """
    with TemporaryDirectory(prefix="ngraph-open-") as temporary:
        package = download.pull(remote, Path(temporary) / "package")
        try:
            check_files(package)
            misfit = read_probe(package.engine).misfit(package.manifest.spec)
            if misfit:
                raise EngineError(f"{remote.shown} has a probe of another engine: {misfit}")
        except EngineError as error:
            raise EngineError(str(error).replace(temporary, remote.shown)) from None
    if Tag.STUDY_ID not in model.tags:
        return  # logged without its study, so that the manifest is all there is
    origin = package.manifest.origin
    run = client.get_run(model.source_run_id).data.tags if model.source_run_id else {}
    digest = engine_digest(package.manifest.engine_files())
    for what, said, recorded in (
        ("study", origin.study_id, run.get(Tag.STUDY_ID)),
        ("id", origin.engine_id, model.tags.get(Tag.ENGINE_ID)),
        ("key", package.manifest.compiled.key, model.tags.get(Tag.ENGINE_KEY)),
        ("digest", digest, digest if f'"{origin.engine_id}": "{digest}"' in run.get(Tag.ENGINES, "") else None),
    ):
        if said != recorded:
            raise EngineError(
                f"{remote.shown} is not the one that run {model.source_run_id} recorded: its {what} is {said}, not "
                f"{recorded or 'known there'}"
            )


def find(named: str, batch: int | None, tracking_uri: str) -> str:
    """Find the id of a LoggedModel.

    ``named`` is as `sources.find` takes it; ``batch`` selects one of a run's engines. Raises `TrackingError` if the
    server cannot be reached or knows no such thing, and `UsageError` if a run has several engines, or none.
    """
    chosen = batch is not None and _RUN.fullmatch(named)
    wanted = EngineFilter(batch_sizes=(batch,)) if chosen and batch is not None else EngineFilter()
    return sources.find(named, tracking_uri, wanted).model_id


def rivals(candidate: LoggedEngine, metric: str, batch: int | None) -> tuple[Mapping[str, Any], tuple[Rival, ...]]:
    """The engine's best cell, at any or one batch size, and cells of the same model and experiment that could beat it."""
    spec, origin = candidate.manifest.spec, candidate.manifest.origin
    meant = Selection(
        workloads=(spec.workload,),
        precisions=(spec.target.precision,),
        batch_sizes=() if batch is None else (batch,),
    )
    found = _beside(candidate.model, candidate.remote.tracking_uri)
    every = results.select(meant, found=found)
    same = every["content"].fillna("") == candidate.cells["content"].fillna("").iloc[0]
    frame = latest(distinct.by_name(every[same]))
    others = frame["model_id"].fillna("") != candidate.model_id
    # One machine may have been measured under several profiles.
    here = frame["fingerprint"] == origin.fingerprint.get("digest")
    here &= frame[PROFILE].fillna(frame["device"]).map(accelerator) == accelerator(origin.device)
    return champion.rivals(candidate.cells, frame[others & here.fillna(False)], metric, batch)


def _cells(model: LoggedModel, manifest: Manifest, tracking_uri: str) -> pd.DataFrame:
    study_id = model.tags.get(Tag.STUDY_ID)
    if study_id:
        frame = results.select(Selection(tags={Tag.STUDY_ID: study_id}), found=_beside(model, tracking_uri))
        own: pd.DataFrame = frame[frame["model_id"] == model.model_id]
        if len(own):
            return own
    return typed(pd.DataFrame(rows(model.model_id, manifest)), COLUMNS)


def _beside(model: LoggedModel, tracking_uri: str) -> FoundRuns:
    """Study runs of an engine's experiment. Others may have recorded anything in theirs."""
    found = listing.find(tracking_uri)
    (runs,) = found.runs.values()
    own = [run for run in runs if run.experiment_id == model.experiment_id]
    return replace(found, runs=dict.fromkeys(found.runs, own))


def rows(model_id: str, manifest: Manifest) -> list[dict[str, Any]]:
    """Rows of the tidy table from an engine's manifest."""
    spec, origin = manifest.spec, manifest.origin
    shared = {
        "study_id": origin.study_id, "study": origin.study, "device": origin.device,
        "fingerprint": origin.fingerprint.get("digest"), "workload": spec.workload, "content": spec.digest, "label": origin.label,
        "family": spec.family, "compiler": spec.compiler, "compiler_label": spec.compiler,
        "flags": json.dumps(manifest.flags, sort_keys=True), "precision": spec.target.precision,
        "precision_in_force": manifest.precision_in_force, "mode": spec.target.mode, "threads": spec.target.threads,
        "engine": origin.engine_id, "lane": origin.lane_id, "lane_run_id": origin.run_id, "model_id": model_id,
    }  # fmt: skip
    return [
        {
            **shared,
            "batch": figures.batch,
            "verdict": figures.verdict,
            "reason": figures.reason,
            "noise": figures.noise or None,
            "baseline": figures.baseline,
            "reference_by": spec.reference_by,
            "cell": journal.cell_id(origin.lane_id, figures.batch),
            **figures.metrics,
        }
        for figures in manifest.figures
    ]
