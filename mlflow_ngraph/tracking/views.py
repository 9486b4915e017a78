"""Write ready-made views (charts, columns) into an experiment for MLflow's UI, and build links to views and runs.

A view is an experiment tag in a format that the MLflow UI reads and that MLflow does not document. Hence views are only
written to servers of versions where they are known to work, and one that a person has edited is left alone.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from packaging.version import InvalidVersion, Version

from mlflow_ngraph import addresses
from mlflow_ngraph.metrics import CELL_METRICS
from mlflow_ngraph.tracking import schema
from mlflow_ngraph.tracking.schema import CURVE, CURVE_OK, Kind, Param, Tag

if TYPE_CHECKING:
    from mlflow import MlflowClient

DEVICE_COMPARISON = "ngraph-devices"
"""The id of the view that is opened first, in links."""
OLDEST, BEFORE = Version("3.15"), Version("4")
_PREFIX = "mlflow.sharedViewState."
_WORKFLOW = "workflowType=machine_learning"
"""Without it the UI shows its views for language models instead."""
_MOST = 40
"""Views of an experiment that MLflow shows."""
_DIGITS = 12
"""Characters of a digest in the id of a model's view; several models may have one name."""
_PARAMS = (Param.MODEL, Param.DEVICE, Param.COMPILER, Param.PRECISION)


@dataclass(frozen=True)
class View:
    """A view of all lane runs: charts and columns."""

    id: str
    name: str
    charts: Sequence[dict[str, Any]]
    columns: Sequence[str]
    """Metrics and tags, besides the columns that name a run."""
    order: str
    """The headline that the runs are sorted by, the largest first."""
    only: Sequence[str] = ()
    """Filters of the runs."""

    def state(self) -> dict[str, Any]:
        """State of the view as the UI keeps it."""
        return {
            "searchFilter": " AND ".join([f"tags.`{Tag.KIND}` = '{Kind.LANE}'", *self.only]),
            "orderByKey": f"metrics.`{self.order}`",
            "orderByAsc": False,
            "startTime": "ALL",
            "lifecycleFilter": "Active",
            "datasetsFilter": [],
            "modelVersionFilter": "All Runs",
            "selectedColumns": [*(f"params.`{name}`" for name in _PARAMS), *self.columns],
            "columnOrder": [],
            "columnWidths": {},
            "runsHiddenMode": "SHOWALL",
            "compareRunCharts": [{**chart, "metricSectionId": self.id} for chart in (*self.charts, *_suppressed())],
            "compareRunSections": [
                {
                    "uuid": self.id,
                    "name": self.name,
                    "display": True,
                    "isReordered": True,
                    "deleted": False,
                    "isGenerated": False,
                }
            ],
            "viewMaximized": False,
            "runListHidden": False,
            "isAccordionReordered": True,
            "useGroupedValuesInCharts": True,
            "hideEmptyCharts": True,
            "groupBy": None,
            "groupsExpanded": {},
            "globalLineChartConfig": {"xAxisKey": "step", "lineSmoothness": 0, "selectedXAxisMetricKey": ""},
        }


def supported(version: str | None) -> bool:
    """True if a server of this version of MLflow shows views."""
    try:
        return version is not None and OLDEST <= Version(version) < BEFORE
    except InvalidVersion:
        return False


def install(
    client: MlflowClient, experiment_id: str, models: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> dict[str, str]:
    """Put the views into an experiment, or bring them up to date; an edited one stays as it is.

    ``models`` are filters of models that get a view of their own, by name, as far as an experiment holds so many.
    Returns the ids of these views by model.
    """
    present = client.get_experiment(experiment_id).tags
    taken = {name for name in present if name.startswith(_PREFIX)} | {_PREFIX + view.id for view in VIEWS}
    shown = {}
    for view in VIEWS:
        _put(client, experiment_id, view, present)
    for model, only in models.items():
        view = _of_model(model, only)
        taken.add(_PREFIX + view.id)
        if len(taken) <= _MOST or _PREFIX + view.id in present:
            _put(client, experiment_id, view, present)
            shown[model] = view.id
    return shown


def _put(client: MlflowClient, experiment_id: str, view: View, present: Mapping[str, str]) -> None:
    name, packed = _PREFIX + view.id, _packed(view.state())
    if name in present:
        known = json.loads(present[name])
        if known.get("state") == packed or known.get("createdAt") != known.get("updatedAt"):
            return
    now = time.time_ns() // 1_000_000
    envelope = {"name": view.name, "createdAt": now, "updatedAt": now, "state": packed}
    client.set_experiment_tag(experiment_id, name, json.dumps(envelope))


def link(base: str, experiment_id: str, view: str = DEVICE_COMPARISON) -> str:
    """The address of a view."""
    query = f"viewStateShareKey={view}&compareRunsMode=CHART&{_WORKFLOW}"
    return f"{base}/#/experiments/{experiment_id}/runs?{query}"


def run_link(base: str, experiment_id: str, run_id: str, path: str = "") -> str:
    """Address of a run, or of a page below it."""
    return f"{base}/#/experiments/{experiment_id}/runs/{run_id}{path}?{_WORKFLOW}"


def quoted(text: str) -> str:
    """A value as MLflow's filters have it; they know no escape, but two quotation marks."""
    return f'"{text}"' if "'" in text else f"'{text}'"


def command(tracking_uri: str) -> str:
    """Command that shows a store without a server, with the page at ``/ngraph``."""
    return f"mlflow server --app-name ngraph --backend-store-uri {shlex.quote(addresses.shown(tracking_uri))}"


def _packed(state: dict[str, Any]) -> str:
    text = json.dumps(state, separators=(",", ":"), sort_keys=True).encode()
    return "deflate;" + base64.b64encode(zlib.compress(text, 9)).decode()


def _lines(*names: str, scale: str = "linear") -> list[dict[str, Any]]:
    """Charts of metrics over batch size."""
    return [
        _card(
            f"ngraph-line-{name}",
            "LINE",
            metricKey=CURVE + name,
            selectedMetricKeys=[CURVE + name],
            lineSmoothness=0,
            xAxisScaleType="log",
            scaleType=scale,
            range={},
            xAxisKey="step",
            selectedXAxisMetricKey="",
            yAxisKey="metric",
            yAxisExpressions=[],
            ignoreOutliers=False,
            useGlobalXaxisKey=False,
            useGlobalLineSmoothing=True,
        )
        for name in names
    ]


def _bars(*names: str) -> list[dict[str, Any]]:
    """Bar charts of headlines."""
    return [_card(f"ngraph-bar-{name}", "BAR", metricKey=name) for name in names]


def _scatter(x: str, y: str) -> dict[str, Any]:
    """Scatter plot of one headline against another."""
    axes = {"xaxis": {"key": x, "type": "METRIC"}, "yaxis": {"key": y, "type": "METRIC"}}
    return _card(f"ngraph-scatter-{x}-{y}", "SCATTER", **axes)


def _parallel(*metrics: str) -> dict[str, Any]:
    """Parallel coordinates: every run as a line through its params and metrics."""
    return _card(
        "ngraph-parallel", "PARALLEL", selectedParams=list(_PARAMS), selectedMetrics=list(metrics), showAllRuns=True
    )


def _suppressed() -> list[dict[str, Any]]:
    """The UI draws a chart for every metric that no card speaks of: too many to find anything."""
    curves = [CURVE_OK, *(CURVE + name for name in CELL_METRICS)]
    names = [*curves, *schema.HEADLINES, *schema.STUDY_METRICS]
    return [
        {**_card(f"ngraph-hidden-{name}", "BAR", metricKey=name), "isGenerated": True, "deleted": True}
        for name in dict.fromkeys(names)
    ]


def _card(uuid: str, kind: str, **settings: Any) -> dict[str, Any]:
    return {"uuid": uuid, "type": kind, "runsCountToCompare": 100, "deleted": False, "isGenerated": False, **settings}


def _metrics(*names: str) -> list[str]:
    return [f"metrics.`{name}`" for name in names]


def _tags(*names: str) -> list[str]:
    return [f"tags.`{name}`" for name in names]


_COMPARED = [
    *_bars("speedup", "throughput"),
    *_lines("throughput", "speedup", "latency_p50_ms", "latency_p99_ms", "ase", "cpu_percent"),
    _scatter("latency_p99_ms_at_best", "throughput"),
    _parallel("latency_p99_ms", "throughput"),
]
_COMPARED_IN = [
    *_metrics(
        "throughput",
        "best_batch",
        "speedup",
        "latency_p50_ms",
        "latency_p99_ms",
        "cpu_percent",
        "parity_cosine",
    ),
    *_tags(Tag.VERDICT),
]


def _of_model(model: str, only: Sequence[str]) -> View:
    """View of one model: its lines alone in each chart."""
    digest = hashlib.sha256(" ".join(only).encode()).hexdigest()
    return View(f"ngraph-model-{digest[:_DIGITS]}", model, _COMPARED, _COMPARED_IN, "throughput", only)


VIEWS = (
    View(DEVICE_COMPARISON, "Device comparison", _COMPARED, _COMPARED_IN, "throughput"),
    View(
        "ngraph-scaling",
        "Batch scaling",
        [
            *_lines("throughput", "latency_p50_ms", "latency_p99_ms", scale="log"),
            *_lines("rtr", "ase", "bsr", "peak_memory_mb"),
            *_bars("best_batch", "ase"),
        ],
        _metrics("throughput_b1", "throughput", "best_batch", "rtr", "ase", "bsr", "peak_memory_mb"),
        "rtr",
    ),
    View(
        "ngraph-speedup",
        "Speed-up",
        [
            *_lines("speedup", "bsr", "cpu_reduction"),
            *_bars("speedup", "speedup_b1"),
            _scatter("compile_total_s", "speedup"),
            _scatter("engine_size_mb", "speedup"),
            _parallel("best_batch", "speedup"),
        ],
        [
            *_metrics("speedup", "speedup_ci_low", "speedup_ci_high", "speedup_b1", "best_batch", "bsr"),
            *_metrics("compile_total_s", "engine_size_mb"),
        ],
        "speedup",
    ),
    View(
        "ngraph-parity",
        "Parity and verdicts",
        [
            *_bars("cells_ok", "cells_total", "parity_max_rel", "parity_max_abs", "parity_cosine"),
            *_lines("parity_top1"),
        ],
        [
            *_tags(Tag.VERDICT, Tag.REASON, Tag.VERDICTS),
            *_metrics("cells_ok", "cells_total", "parity_cosine", "parity_max_rel", "parity_max_abs"),
            f"params.`{Param.PRECISION_IN_FORCE}`",
        ],
        "parity_max_rel",
    ),
)
"""Views that `install` puts into an experiment."""
