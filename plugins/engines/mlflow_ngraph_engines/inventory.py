"""List a tracking server's engines with figures and registered names, and find those unfit for this machine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pandas as pd

from mlflow_ngraph.analysis import results
from mlflow_ngraph.analysis.selection import FILTER_COLUMNS, Selection
from mlflow_ngraph.engines import compatibility
from mlflow_ngraph.errors import EngineError, TrackingError
from mlflow_ngraph.metrics import FOREIGN, TABLE, TEXT_COLUMNS, with_estimates
from mlflow_ngraph.tables.columns import typed
from mlflow_ngraph.tracking import connection, download, manifests
from mlflow_ngraph.tracking.schema import Kind, Tag
from mlflow_ngraph.verdicts import Verdict
from mlflow_ngraph_engines import champion, logged_engine
from mlflow_ngraph_engines.registry import Registry

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel

AT_ONCE = 8
_OWN = (
    "study_id", "study", "device", "fingerprint", "workload", "label", "family", "compiler", "compiler_label",
    "precision", "precision_in_force", "mode", "threads", "batch", "verdict", "cell", "model_id", "started_at",
    "finished_at", "git_commit", "experiment", "run_id", "throughput", "throughput_ci_low", "throughput_ci_high", "engine_size_mb", "unsteady", FOREIGN,
)  # fmt: skip


@dataclass(frozen=True)
class ListedEngine:
    """An engine of a tracking server."""

    tracking_uri: str
    model: LoggedModel
    registered: tuple[tuple[str, str, tuple[str, ...]], ...]
    """Name, version and aliases of each registered version."""
    cells: pd.DataFrame
    """Rows of the tidy table; derived from tags where the study is not recorded here."""

    @property
    def model_id(self) -> str:
        return str(self.model.model_id)

    @property
    def batch_sizes(self) -> list[int]:
        """Measured batch sizes."""
        return [int(batch) for batch in self.cells["batch"].dropna()]

    @property
    def named(self) -> tuple[str, ...]:
        """Columns that identify the engine."""
        names = (self.best[name] for name in ("label", "device", "compiler_label", "precision"))
        return (self.model_id, *names, " ".join(map(str, self.batch_sizes)))

    @property
    def aliases(self) -> list[str]:
        """``name@alias`` of each alias."""
        return [f"{name}@{alias}" for name, _, aliases in self.registered for alias in aliases]

    @property
    def versions(self) -> list[str]:
        """``name/version`` of each version."""
        return [f"{name}/{version}" for name, version, _ in self.registered]

    @property
    def signed_by(self) -> str | None:
        """Fingerprint of the signing key as recorded on the server; `verify` checks it."""
        fingerprint = self.model.tags.get(Tag.SIGNED_BY)
        return None if fingerprint is None else str(fingerprint)

    @property
    def interrupted(self) -> bool:
        """A removal was started and not finished."""
        return Tag.PRUNED in self.model.tags

    @property
    def age_s(self) -> float:
        """Seconds since logging."""
        return max(0.0, time.time() - float(self.model.creation_timestamp) / 1e3)

    @cached_property
    def best(self) -> dict[str, Any]:
        """Cell with the highest throughput, else the first one."""
        cell = champion.best(self.cells, champion.METRIC)
        return dict(cell if cell is not None else self.cells.iloc[0])

    @property
    def verdict(self) -> str | None:
        """``ok`` if all cells are; None where the study is not recorded here."""
        verdicts = [str(verdict) for verdict in self.cells["verdict"].dropna()]
        others = [verdict for verdict in verdicts if verdict != str(Verdict.OK)]
        return next(iter(others or verdicts), None)

    def misfit(self) -> str | None:
        """Reason that it cannot run here; empty if none is known, None without a manifest."""
        absent = compatibility.unavailable(str(self.cells["compiler"].iloc[0]))
        if absent:
            return absent
        try:
            return compatibility.incompatibility(manifests.of(download.of_model(self.model, self.tracking_uri)))
        except (EngineError, TrackingError):
            return None


def read(
    tracking_uris: Sequence[str] | None,
    experiments: Sequence[str] | None,
    selection: Selection,
    *,
    metric: str = champion.METRIC,
    cache: bool = True,
) -> list[ListedEngine]:
    """Read the complete or partly removed engines that match the selection.

    ``metric`` is read besides the usual ones. Raises `UnknownNameError` if an experiment does not exist or a filter has
    no match, `UsageError` if the filters let nothing through together, and `TrackingError` if a server cannot be
    reached.
    """
    engines: list[ListedEngine] = []
    for given in tracking_uris or (None,):
        uri = connection.resolve_uri(given)
        cells = results.select(Selection(tags=selection.tags), uri, experiments, columns=_columns(metric), cache=cache)
        engines += _of_server(uri, experiments, cells, bool(selection.tags))
    if not engines:
        return []
    every = pd.concat([engine.cells for engine in engines], ignore_index=True)
    selection.check(every)
    meant = set(selection.of(every)["model_id"])
    return [engine for engine in engines if engine.model_id in meant]


def misfits(engines: Sequence[ListedEngine]) -> dict[str, str | None]:
    """`ListedEngine.misfit` by model id, computed concurrently."""
    with ThreadPoolExecutor(AT_ONCE, "ngraph-manifest") as pool:
        answers = pool.map(ListedEngine.misfit, engines)
        return {engine.model_id: answer for engine, answer in zip(engines, answers, strict=True)}


def _columns(metric: str) -> list[str]:
    estimates = [name for name in with_estimates([metric]) if name in TABLE]
    return list(dict.fromkeys([*_OWN, *FILTER_COLUMNS, *estimates]))


def _of_server(uri: str, experiments: Sequence[str] | None, cells: pd.DataFrame, tagged: bool) -> list[ListedEngine]:
    client = connection.reach(uri)
    with connection.talking(uri, "list the engines", connection.RECORDING):
        placed = [
            (model, experiment)
            for model, experiment in _models(client, experiments)
            if str(model.status) == "READY" or Tag.PRUNED in model.tags
        ]
        registered = Registry(client, uri).versions()
        # A table may name any engine. It is believed about those of its experiment, and of several tables that of the run
        # to which the engine's lane belongs.
        own = cells["model_id"].map({str(model.model_id): name for model, name in placed}) == cells["experiment"]
        measured = {str(name): rows for name, rows in cells[own.fillna(False)].groupby("model_id", sort=False)}
        for model, _ in placed:
            rows = measured.get(str(model.model_id))
            if rows is not None and rows["run_id"].nunique() > 1:
                parent = client.get_run(model.source_run_id).data.tags.get(Tag.PARENT)
                if (rows["run_id"] == parent).any():
                    measured[str(model.model_id)] = rows[rows["run_id"] == parent]
    # Filters by tag refer to study runs, which only the table knows.
    models = [model for model, _ in placed if model.model_id in measured or not tagged]
    others = [model for model in models if model.model_id not in measured]
    with ThreadPoolExecutor(AT_ONCE, "ngraph-manifest") as pool:
        described = pool.map(lambda model: _unmeasured(model, uri, list(cells.columns)), others)
        measured.update(zip((model.model_id for model in others), described, strict=True))
    return [
        ListedEngine(uri, model, tuple(registered.get(model.model_id, ())), measured[model.model_id])
        for model in models
    ]


def _models(client: MlflowClient, experiments: Sequence[str] | None) -> list[tuple[LoggedModel, str]]:
    """All engines, with the names of their experiments."""
    names = connection.experiments(client, experiments)
    query = f"tags.`{Tag.KIND}` = '{Kind.ENGINE}'"
    models: list[LoggedModel] = connection.every(
        lambda token: client.search_logged_models(list(names), query, page_token=token)
    )
    return [(model, names[model.experiment_id]) for model in models]


def _unmeasured(model: LoggedModel, uri: str, columns: Sequence[str]) -> pd.DataFrame:
    """Rows of an engine without its study, from the manifest or else from tags."""
    records: list[dict[str, Any]] = []
    with suppress(EngineError, TrackingError):
        records = logged_engine.rows(model.model_id, manifests.of(download.of_model(model, uri)))
    records = records or _of_tags(model, columns)
    began = {"started_at": float(model.creation_timestamp) / 1e3}
    rows = [{name: value for name, value in {**row, **began}.items() if name in columns} for row in records]
    return typed(pd.DataFrame(rows), columns)


def _of_tags(model: LoggedModel, columns: Sequence[str]) -> list[dict[str, Any]]:
    tags = model.tags
    shared = {name: tags.get(f"ngraph.{name}") for name in columns if name in TEXT_COLUMNS}
    shared["compiler_label"] = shared.get("compiler_label") or tags.get(Tag.COMPILER)
    shared["model_id"] = model.model_id
    batches = [int(text) for text in tags.get(Tag.BATCH_SIZES, "").split(",") if text.isdigit()]
    return [{**shared, "batch": batch} for batch in batches] or [shared]
