"""Ready-made views of an experiment's runs: charts and columns that compare devices and compilers.

A view is an experiment tag in a format that the MLflow UI reads and that MLflow does not document. Hence it is only
written to servers of versions where it is known to work, and one that a person has edited is left alone.
"""

from __future__ import annotations

import base64
import json
import time
import zlib
from typing import TYPE_CHECKING, Any

from packaging.version import InvalidVersion, Version

from mlflow_ngraph.tracking import schema
from mlflow_ngraph.tracking.schema import CURVE, CURVE_OK, Kind, Param, Tag

if TYPE_CHECKING:
    from mlflow import MlflowClient

DEVICE_COMPARISON = "ngraph-devices"
"""The id of the view in links."""
OLDEST, BEFORE = Version("3.15"), Version("4")
_PREFIX = "mlflow.sharedViewState."
_SECTION = "ngraph-comparison"
_CURVES = ("throughput", "speedup", "latency_p50_ms", "latency_p99_ms", "ase", "cpu_percent")
_PARAMS = (Param.LABEL, Param.DEVICE, Param.COMPILER_LABEL, Param.PRECISION)
_METRICS = ("throughput", "best_batch", "speedup", "latency_p50_ms", "latency_p99_ms", "cpu_percent", "parity_cosine")


def supported(version: str | None) -> bool:
    """Whether a server of this version of MLflow shows views."""
    try:
        return version is not None and OLDEST <= Version(version) < BEFORE
    except InvalidVersion:
        return False


def install(client: MlflowClient, experiment_id: str) -> None:
    """Put the view into an experiment, or bring it up to date; an edited one stays as it is."""
    name = _PREFIX + DEVICE_COMPARISON
    packed = _packed(_device_comparison())
    present = client.get_experiment(experiment_id).tags.get(name)
    if present is not None:
        known = json.loads(present)
        if known.get("state") == packed or known.get("createdAt") != known.get("updatedAt"):
            return
    now = time.time_ns() // 1_000_000
    envelope = {"name": "Device comparison", "createdAt": now, "updatedAt": now, "state": packed}
    client.set_experiment_tag(experiment_id, name, json.dumps(envelope))


def link(base: str, experiment_id: str) -> str:
    """The address of the view. Without ``workflowType`` the UI opens experiments for language models instead."""
    query = f"viewStateShareKey={DEVICE_COMPARISON}&compareRunsMode=CHART&workflowType=machine_learning"
    return f"{base}/#/experiments/{experiment_id}/runs?{query}"


def _packed(state: dict[str, Any]) -> str:
    text = json.dumps(state, separators=(",", ":"), sort_keys=True).encode()
    return "deflate;" + base64.b64encode(zlib.compress(text, 9)).decode()


def _device_comparison() -> dict[str, Any]:
    return {
        "searchFilter": f"tags.`{Tag.KIND}` = '{Kind.LANE}'",
        "orderByKey": "metrics.`throughput`",
        "orderByAsc": False,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "datasetsFilter": [],
        "modelVersionFilter": "All Runs",
        "selectedColumns": [
            *(f"params.`{name}`" for name in _PARAMS),
            *(f"metrics.`{name}`" for name in _METRICS),
            f"tags.`{Tag.VERDICT}`",
        ],
        "columnOrder": [],
        "columnWidths": {},
        "runsHiddenMode": "SHOWALL",
        "compareRunCharts": [*_charts(), *_suppressed()],
        "compareRunSections": [
            {
                "uuid": _SECTION,
                "name": "Device comparison",
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


def _charts() -> list[dict[str, Any]]:
    """Curves over batch size, the best of each lane as bars, and what was paid for it."""
    lines = [
        _card(
            f"ngraph-line-{name}",
            "LINE",
            metricKey=CURVE + name,
            selectedMetricKeys=[CURVE + name],
            lineSmoothness=0,
            xAxisScaleType="log",
            scaleType="linear",
            range={},
            xAxisKey="step",
            selectedXAxisMetricKey="",
            yAxisKey="metric",
            yAxisExpressions=[],
            ignoreOutliers=False,
            useGlobalXaxisKey=False,
            useGlobalLineSmoothing=True,
        )
        for name in _CURVES
    ]
    scatter = _card(
        "ngraph-scatter",
        "SCATTER",
        xaxis={"key": "latency_p99_ms", "type": "METRIC"},
        yaxis={"key": "throughput", "type": "METRIC"},
    )
    parallel = _card(
        "ngraph-parallel",
        "PARALLEL",
        selectedParams=list(_PARAMS),
        selectedMetrics=["latency_p99_ms", "throughput"],
        showAllRuns=True,
    )
    bars = [_card(f"ngraph-bar-{name}", "BAR", metricKey=name) for name in ("speedup", "throughput")]
    return [*lines, *bars, scatter, parallel]


def _suppressed() -> list[dict[str, Any]]:
    """The UI draws a chart for every metric that no card speaks of: too many to find anything."""
    curves = [CURVE_OK, *(CURVE + name for name in schema.CELL_METRICS)]
    names = [*curves, *schema.HEADLINES, *schema.STUDY_METRICS]
    return [
        {**_card(f"ngraph-hidden-{name}", "BAR", metricKey=name), "isGenerated": True, "deleted": True}
        for name in dict.fromkeys(names)
    ]


def _card(uuid: str, kind: str, **settings: Any) -> dict[str, Any]:
    return {
        "uuid": uuid,
        "type": kind,
        "runsCountToCompare": 100,
        "metricSectionId": _SECTION,
        "deleted": False,
        "isGenerated": False,
        **settings,
    }
