"""Promote a measured engine to champion of a registered model, if it is better."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd

from mlflow_ngraph.analysis import undecided
from mlflow_ngraph.devices.registry import accelerator
from mlflow_ngraph.engines import compatibility
from mlflow_ngraph.errors import EngineError
from mlflow_ngraph.tracking import connection, model_registry, schema, signature_files
from mlflow_ngraph.tracking.engine_log import package_tags
from mlflow_ngraph.tracking.schema import Tag
from mlflow_ngraph_engines import champion as champions
from mlflow_ngraph_engines import evidence, logged_engine
from mlflow_ngraph_engines.champion import EngineComparison
from mlflow_ngraph_engines.logged_engine import LoggedEngine
from mlflow_ngraph_engines.registry import Registry

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion


@dataclass(frozen=True)
class Promotion:
    """Result of a promotion or a dry run."""

    state: Literal["promoted", "refused", "unchanged", "possible"]
    """``unchanged``: it is the champion already. ``possible``: it would be promoted."""
    name: str
    alias: str
    candidate: LoggedEngine
    version: str | None
    """Version of the candidate; None where it is not registered under this name."""
    over: str | None
    """Version of the previous champion; None without one."""
    comparison: EngineComparison | None
    objections: tuple[str, ...]
    """Objections; overruled ones where it was promoted."""
    description: str
    """Markdown."""
    only_undecided: bool = False
    """Nothing but a possible better one speaks against it."""
    signed_by: str | None = None
    """Key that signed the promotion."""


@dataclass(frozen=True)
class _Champion:
    """Version behind an alias."""

    version: str
    engine: LoggedEngine | None
    cell: Mapping[str, Any] | None
    problem: str
    """Reason that the engine cannot be compared; empty if it can."""


def promote(
    model: str,
    name: str,
    *,
    alias: str | None = None,
    metric: str = champions.METRIC,
    batch: int | None = None,
    accept_undecided: bool = False,
    force: bool = False,
    dry_run: bool = False,
    sign: Ed25519PrivateKey | None = None,
    tracking_uri: str | None = None,
) -> Promotion:
    """Register an engine as a version of a registered model, and let the alias of its device point at it.

    The engine has to be ``ok`` at every batch size. It has to be significantly better than the current champion by
    ``metric``, each at its best batch size or both at ``batch``, on equal machines. No other measured engine of the
    same model, precision and machine may be able to beat it; see `logged_engine.rivals`.

    ``model`` is the id of a LoggedModel, a ``models:`` address, or the id of a run with a single engine (at ``batch``).
    ``alias`` is by default the device and ``-champion``. ``accept_undecided`` overrules that another cell could beat
    it, and ``force`` whatever speaks against it; that is recorded with the version. ``dry_run`` writes nothing.
    ``sign`` is a key that signs its manifest first. Raises `UsageError` if the request is wrong, `TrackingError` if the
    server cannot be reached or refuses, or somebody else has promoted an engine meanwhile, and `EngineError` if it is
    no engine, or not the one that was logged.
    """
    champions.check_metric(metric)
    uri = connection.resolve_uri(tracking_uri)
    model_id = logged_engine.find(model, batch, uri)
    client = connection.reach(uri)
    with connection.talking(uri, f"promote engine {model_id}", connection.RECORDING):
        candidate = logged_engine.load(client, model_id, uri)
        logged_engine.check_whole(client, candidate.model, candidate.remote)
        chosen = model_registry.check_alias(alias or default_alias(candidate.manifest.origin.device))
        names = Registry(client, uri)
        before = _champion(client, names, name, chosen, uri, metric, batch)
        cell = champions.best(candidate.cells, metric, batch)
        comparison = None
        if before is not None and before.engine is not None and before.cell is not None and cell is not None:
            beside = pd.concat([candidate.cells, before.engine.cells])
            comparison = champions.compare(cell, before.cell, metric, beside)
        objections = _objections(candidate, cell, before, comparison, metric, batch)
        refused = bool(objections)
        answer, rivals = logged_engine.rivals(candidate, metric, batch) if cell is not None else ({}, ())
        if rivals:
            figures = undecided.figure(answer[metric], metric, rivals[0].unit)
            objections = (undecided.sentence(rivals, answer, figures), *objections)
            refused = refused or not accept_undecided
        same = before is not None and before.engine is not None and before.engine.model_id == model_id
        if same:
            objections, comparison = (), None
        promotion = Promotion(
            state="unchanged" if same else "refused" if refused and not force else "possible",
            name=name,
            alias=chosen,
            candidate=candidate,
            version=before.version if same and before else _version(names, name, model_id),
            over=before.version if before and not same else None,
            comparison=comparison,
            objections=objections,
            description=evidence.markdown(
                candidate, cell, (before.version, before.cell) if before and not same else None, comparison, objections
            ),
            only_undecided=bool(rivals) and len(objections) == 1,
        )
        if dry_run or promotion.state == "refused":
            return promotion
        return _carried_out(names, promotion, metric, cell, sign)


def default_alias(device: str) -> str:
    """Alias of a device's champion."""
    return f"{re.sub(r'[^A-Za-z0-9_-]+', '-', device)}-champion"


def _carried_out(
    names: Registry,
    promotion: Promotion,
    metric: str,
    cell: Mapping[str, Any] | None,
    sign: Ed25519PrivateKey | None,
) -> Promotion:
    candidate = promotion.candidate
    by = signature_files.sign(candidate.remote, sign) if sign is not None else None
    if promotion.state == "unchanged":
        return replace(promotion, signed_by=by)
    names.make(promotion.name)
    with names.promoting(promotion.name, promotion.alias, promotion.over):
        version = names.register(promotion.name, candidate.model, _tags(promotion, metric, cell), promotion.description)
        names.crown(promotion.name, promotion.alias, str(version.version))
    return replace(promotion, state="promoted", version=str(version.version), signed_by=by)


def _champion(
    client: MlflowClient, names: Registry, name: str, alias: str, uri: str, metric: str, batch: int | None
) -> _Champion | None:
    from mlflow.exceptions import MlflowException

    version = names.champion(name, alias)
    if version is None:
        return None
    number = str(version.version)
    model_id = model_registry.model_id_of(version)
    if model_id is None:
        return _Champion(number, None, None, "is no engine")
    try:
        engine = logged_engine.load(client, model_id, uri)
    except EngineError as error:
        return _Champion(number, None, None, f"cannot be read: {error}")
    except MlflowException as error:
        if error.error_code != connection.NO_SUCH:
            raise
        return _Champion(number, None, None, "has lost its LoggedModel")
    return _Champion(number, engine, champions.best(engine.cells, metric, batch), "")


def _version(names: Registry, name: str, model_id: str) -> str | None:
    known: ModelVersion | None = names.version_of(name, model_id)
    return None if known is None else str(known.version)


def _objections(
    candidate: LoggedEngine,
    cell: Mapping[str, Any] | None,
    before: _Champion | None,
    comparison: EngineComparison | None,
    metric: str,
    batch: int | None,
) -> tuple[str, ...]:
    at = "" if batch is None else f" at batch {batch}"
    objections = list(candidate.doubts)
    if cell is None:
        objections.append(f"it has no {metric}{at}")
    if before is None:
        return tuple(objections)
    called = f"the champion, version {before.version},"
    if before.engine is None:
        return (*objections, f"{called} {before.problem}: there is nothing to compare with")
    mine, theirs = candidate.manifest, before.engine.manifest
    if mine.spec.digest != theirs.spec.digest:
        objections.append(f"{called} is another model, in weights or graph: how fast it is does not say which is right")
    change = compatibility.other_interface(mine.spec, theirs.spec)
    if change:
        objections.append(f"{called} has {change}")
    for what, value, other in (
        ("kind of device", accelerator(mine.origin.device), accelerator(theirs.origin.device)),
        ("machine", mine.origin.fingerprint.get("digest"), theirs.origin.fingerprint.get("digest")),
    ):
        if value != other:
            objections.append(f"{called} has another {what}: {other}, not {value}")
    if before.cell is None:
        objections.append(f"{called} has no {metric}{at} to compare with")
    elif comparison is not None and not comparison.better:
        objections.append(f"it is not significantly better than {called[:-1]}: {comparison.text}")
    return tuple(objections)


def _tags(promotion: Promotion, metric: str, cell: Mapping[str, Any] | None) -> dict[str, str]:
    candidate = promotion.candidate
    compared = promotion.comparison
    record = {
        "at": time.time(),
        "metric": metric,
        "batch": int(cell["batch"]) if cell is not None else None,
        "value": float(cell[metric]) if cell is not None else None,
        "over": promotion.over,
        "ratio": compared.ratio if compared and math.isfinite(compared.ratio) else None,
        "ci_low": compared.ci_low if compared else None,
        "ci_high": compared.ci_high if compared else None,
        "p_value": compared.p_value if compared else None,
        "how": compared.how if compared else None,
        "overruled": list(promotion.objections),
    }
    tags = package_tags(candidate.manifest, candidate.remote.digest or "")
    for name in (Tag.STUDY_ID, Tag.STUDY, Tag.VERDICT):
        tags[name] = candidate.model.tags.get(name, "")
    tags[f"{Tag.PROMOTED}{promotion.alias}"] = json.dumps(record)
    return {name: schema.cut(value, model_registry.MAX_TAG) for name, value in tags.items() if value}
