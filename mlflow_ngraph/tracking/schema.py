"""Every name that this package writes to MLflow. Others read by these names: changing one is a breaking change."""

from __future__ import annotations

import colorsys
import re
import zlib

from mlflow_ngraph.verdicts import Verdict

SCHEMA_VERSION = "1"
"""Version of the names below, on every run and experiment in the tag ``ngraph.schema``."""

MAX_PARAM = 6000
"""Characters of a param value that a tracking server keeps."""
MAX_TAG = 8000
"""Characters of a tag value that a tracking server keeps."""
MAX_NAME = 250
"""Characters of the name of a param, metric or tag."""


class Tag:
    """Names of tags."""

    SCHEMA = "ngraph.schema"
    KIND = "ngraph.kind"
    STUDY_ID = "ngraph.study_id"
    STUDY = "ngraph.study"
    LANE_ID = "ngraph.lane_id"
    ENGINE_ID = "ngraph.engine_id"
    ENGINE_KEY = "ngraph.engine_key"
    ENGINE_REUSED = "ngraph.engine_reused"
    CELLS = "ngraph.cells"
    ENGINES = "ngraph.engines"
    CONTENT = "ngraph.content"
    DEVICE = "ngraph.device"
    WORKLOAD = "ngraph.workload"
    LABEL = "ngraph.label"
    FAMILY = "ngraph.family"
    COMPILER = "ngraph.compiler"
    COMPILER_LABEL = "ngraph.compiler_label"
    PRECISION = "ngraph.precision"
    PRECISION_IN_FORCE = "ngraph.precision_in_force"
    MODE = "ngraph.mode"
    BASELINE = "ngraph.baseline"
    REFERENCE_BY = "ngraph.reference_by"
    VERDICT = "ngraph.verdict"
    VERDICTS = "ngraph.verdicts"
    NOISE = "ngraph.noise"
    VARIABLES = "ngraph.variables"
    REASON = "ngraph.reason"
    COMPLETE = "ngraph.complete"
    FINGERPRINT = "ngraph.fingerprint"
    PROCESSOR = "ngraph.processor"
    VERSION = "ngraph.version."
    """Followed by the name of a package or compiler."""
    SHA256 = "ngraph.sha256"
    MANIFEST_SHA256 = "ngraph.manifest_sha256"
    SIGNED_BY = "ngraph.signed_by"
    PRUNED = "ngraph.pruned"
    PROMOTED = "ngraph.promoted."
    """Followed by an alias; what made a version its champion."""
    FOLLOWER = "ngraph.follower."
    """Followed by a device; what a device that follows an alias says of a version."""
    PROMOTING = "ngraph.promoting."
    """Followed by an alias and the name of a promotion that is under way."""
    BATCH_SIZES = "ngraph.batch_sizes"
    ENGINE_PROBLEM = "ngraph.engine_problem"
    RESUMED_BY = "ngraph.resumed_by"
    DEVICES = "ngraph.devices"
    RESULTS_SHA256 = "ngraph.results_sha256"
    ALIVE_AT = "ngraph.alive_at"
    HOST = "ngraph.host"
    HOST_ARCH = "ngraph.host.arch"
    HOST_SYSTEM = "ngraph.host.system"
    HOST_PROCESSORS = "ngraph.host.processors"

    PARENT = "mlflow.parentRunId"
    NOTE = "mlflow.note.content"
    COLOUR = "mlflow.runColor"


class Kind:
    """Values of the tag ``ngraph.kind``."""

    STUDY = "study"
    LANE = "lane"
    ENGINE = "engine"
    FLEET = "fleet"
    """Holds the studies of several devices."""


class Param:
    """Names of params."""

    DEVICE = "device"
    WORKLOAD = "workload"
    LABEL = "label"
    FAMILY = "family"
    COMPILER = "compiler"
    COMPILER_LABEL = "compiler_label"
    PRECISION = "precision"
    PRECISION_IN_FORCE = "precision_in_force"
    MODE = "mode"
    THREADS = "threads"
    TRANSFERS = "transfers"
    BATCH_SIZES = "batch_sizes"
    FLAG = "flag."
    """Followed by the name of a flag; the value is the one in force."""
    STUDY = "study."
    """Followed by a key of the study. Set apart from the params of an MLflow project, which MLflow logs quoted."""


class Artifact:
    """Files of a study run and of an engine."""

    RESULTS = "results.parquet"
    RESULTS_CSV = "results.csv"
    SAMPLES = "samples.parquet"
    ARRIVALS = "arrivals.parquet"
    RACES = "races.json"
    STUDY = "study.yaml"
    FINGERPRINT = "fingerprint.json"
    JOURNAL = "journal.jsonl"
    SUMMARY = "summary.md"
    MANIFEST = "manifest.json"
    REPORT = "report"
    """The directory of a report on the study."""
    ENGINE = "engine"
    """The directory of an engine's own files within its LoggedModel."""


CURVE = "batch/"
"""Before the name of a cell metric: the curve over batch size, with step = batch size."""
CURVE_OK = "batch/ok"
"""1 where the verdict of the cell is ``ok``, else 0."""
CURVE_QUIET = "batch/quiet"
"""1 where the machine was quiet enough while the cell was measured; 0 where its absolute figures are unsteady."""

MODEL_TYPE = "ngraph-engine"
DEFAULT_EXPERIMENT = "ngraph"

AT_BEST = (
    "throughput",
    "throughput_ci_low",
    "throughput_ci_high",
    "latency_p50_ms",
    "latency_p99_ms",
    "cpu_percent",
    "peak_memory_mb",
    "speedup",
    "speedup_ci_low",
    "speedup_ci_high",
    "rtr",
    "ase",
    "bsr",
    "serve_max_rate",
    "serve_max_rate_p99_ms",
    "serve_peak_rate",
    "serve_peak_p99_ms",
    "serve_peak_p999_ms",
)
"""Headline scalars of a lane that are the cell's own at its best batch size."""
AT_BATCH_1 = ("throughput", "latency_p50_ms", "latency_p99_ms", "speedup")
"""Headline scalars at batch size 1, named ``<name>_b1``."""
HEADLINES: dict[str, str] = {
    **dict.fromkeys(AT_BEST, "of the ok cell with the highest throughput"),
    "best_batch": "batch size of the ok cell with the highest throughput",
    **{f"{name}_b1": "of the ok cell at batch size 1" for name in AT_BATCH_1},
    "parity_cosine": "smallest over the cells that have it",
    "parity_max_abs": "largest over the cells that have it",
    "parity_max_rel": "largest over the cells that have it",
    "compile_total_s": "sum over the engines",
    "engine_size_mb": "sum over the engines",
    "cells_ok": "cells with verdict ok",
    "cells_total": "cells asked for",
}
"""The scalars of a lane run, at step 0, and over which cells they are."""
STUDY_METRICS: dict[str, str] = {
    "cells_total": "cells of the plan",
    "cells_done": "cells with a verdict",
    **{f"cells_{verdict}": f"cells with verdict {verdict}" for verdict in Verdict},
    "cells_unsteady": "cells with unsteady absolute figures, because the machine was not quiet",
    "lanes_total": "lanes of the plan",
    "lanes_done": "lanes whose cells all have a verdict",
    "engines": "engines, compiled or reused",
    "engines_reused": "engines that had been compiled before, by this or another study",
    "duration_s": "seconds from the start of the study to its last cell",
}
"""The scalars of a study run, at step 0."""

SEVERITY = (
    Verdict.OK,
    Verdict.BUILT,
    Verdict.UNVERIFIED,
    Verdict.PARITY_FAILED,
    Verdict.UNSUPPORTED,
    Verdict.LEFT_OUT,
    Verdict.TIMEOUT,
    Verdict.OOM,
    Verdict.FAILED,
    Verdict.CRASHED,
)
"""Verdicts from best to worst; the last one among its cells is the verdict of a lane."""

_COLOURS = {"xeon": "#0072B2", "gpu": "#009E73", "orin": "#D55E00", "host": "#CC79A7"}
_DARKEST, _LIGHTEST = 0.2, 0.75
_OTHER_COLOURS = ("#E69F00", "#56B4E9", "#8C6BB1", "#7F7F7F", "#A6611A", "#1B7837")


def colour(device: str, compiler: str = "") -> str:
    """The colour of a run in the UI: its hue is the device's, its lightness tells the compilers of a device apart.

    Equal in every study; the hues are safe for the colour-blind. Without a compiler it is the plain colour of the
    device. The baseline is the darkest.
    """
    base = _COLOURS.get(device) or _OTHER_COLOURS[sum(device.encode()) % len(_OTHER_COLOURS)]
    if not compiler:
        return base
    from mlflow_ngraph.compilers.registry import COMPILERS

    names = COMPILERS.names()
    place = (
        names.index(compiler) / max(1, len(names) - 1) if compiler in names else zlib.crc32(compiler.encode()) / 2**32
    )
    red, green, blue = (int(base[start : start + 2], 16) / 255 for start in (1, 3, 5))
    hue, _, saturation = colorsys.rgb_to_hls(red, green, blue)
    shade = colorsys.hls_to_rgb(hue, _DARKEST + (_LIGHTEST - _DARKEST) * place, saturation)
    return "#" + "".join(f"{round(255 * part):02X}" for part in shade)


def metric_name(text: str) -> str:
    """``text`` with what MLflow refuses in the name of a metric, param or tag replaced by ``_``."""
    return re.sub(r"[^\w\-. /]|/(?=/)|^/|/$", "_", text, flags=re.ASCII)[:MAX_NAME]


def model_name(text: str) -> str:
    """``text`` with what MLflow refuses in the name of a LoggedModel replaced by ``-``."""
    return re.sub(r"\W+", "-", text, flags=re.ASCII).strip("-")[:MAX_NAME]


def cut(text: str, limit: int) -> str:
    """``text`` in at most ``limit`` characters; says so where it had to be cut."""
    if len(text) <= limit:
        return text
    note = f"… [cut from {len(text)} characters]"
    return text[: limit - len(note)] + note
