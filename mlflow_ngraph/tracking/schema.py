"""Names of tags, params, metrics and files in MLflow: changing one is breaking. Also limits and run colours."""

from __future__ import annotations

import colorsys
import json
import re
import zlib
from collections.abc import Mapping

from mlflow_ngraph.verdicts import Verdict

SCHEMA_VERSION = "1"
"""Version of the names below, on every run and experiment in the tag ``ngraph.schema``."""

ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,255}")
"""Form of the id of a study, cell, lane, engine, run or LoggedModel. A shell takes it as it is."""
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
    MODEL_CONTENT = "ngraph.model_content"
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
    VERSIONS = "ngraph.versions"
    PROCESSOR = "ngraph.processor"
    SHA256 = "ngraph.sha256"
    MANIFEST_SHA256 = "ngraph.manifest_sha256"
    SIGNED_BY = "ngraph.signed_by"
    PRUNED = "ngraph.pruned"
    PROMOTED = "ngraph.promoted."
    """Followed by an alias; the reason why a version is its champion."""
    FOLLOWER = "ngraph.follower."
    """Followed by a device; state of a version on a device that follows an alias."""
    PROMOTING = "ngraph.promoting."
    """Followed by an alias and the name of a promotion that is under way."""
    BATCH_SIZES = "ngraph.batch_sizes"
    ENGINE_PROBLEM = "ngraph.engine_problem"
    RESUMED_BY = "ngraph.resumed_by"
    DEVICES = "ngraph.devices"
    RESULTS_SHA256 = "ngraph.results_sha256"
    ALIVE_AT = "ngraph.alive_at"
    RECORD = "ngraph.record"
    """Key of a study's record in one experiment: what else has it, belongs to that record."""
    RECORDER = "ngraph.recorder"
    """The process that writes a record."""
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
    MODEL = "model"
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


CURVE = "batch/"
"""Before the name of a cell metric: the curve over batch size, with step = batch size."""
CURVE_OK = "batch/ok"
"""1 where the verdict of the cell is ``ok``, else 0."""
CURVE_QUIET = "batch/quiet"
"""1 where the machine was quiet enough while the cell was measured; 0 where its absolute figures are unsteady."""

MODEL_TYPE = "ngraph-engine"
DEFAULT_EXPERIMENT = "ngraph"

BEST_OVER_BATCHES = {
    "throughput": ("throughput_ci_low", "throughput_ci_high"),
    "speedup": ("speedup_ci_low", "speedup_ci_high"),
    "latency_p50_ms": (),
    "latency_p99_ms": (),
}
"""Headline scalars of a lane that are the best over its batch sizes, with what belongs to the same cell. Most wanted first."""
AT_BEST = (
    "cpu_percent",
    "peak_memory_mb",
    "rtr",
    "ase",
    "bsr",
    "serve_max_rate",
    "serve_max_rate_p99_ms",
    "serve_peak_rate",
    "serve_peak_p99_ms",
    "serve_peak_p999_ms",
)
"""Headline scalars of a lane that are the cell's own at the batch size with the highest throughput."""
ALSO_AT_BEST = ("speedup", "latency_p50_ms", "latency_p99_ms")
"""The same, named ``<name>_at_best``: where `BEST_OVER_BATCHES` may be of another batch size."""
AT_BATCH_1 = ("throughput", "latency_p50_ms", "latency_p99_ms", "speedup")
"""Headline scalars at batch size 1, named ``<name>_b1``."""
_OF_BEST = "of the ok cell with the highest throughput"
HEADLINES: dict[str, str] = {
    **dict.fromkeys(BEST_OVER_BATCHES, "the best of the ok cells"),
    **{end: f"of the cell that {name} is of" for name, ends in BEST_OVER_BATCHES.items() for end in ends},
    "best_batch": f"batch size {_OF_BEST}",
    **{f"{name}_at_best": _OF_BEST for name in ALSO_AT_BEST},
    **dict.fromkeys(AT_BEST, _OF_BEST),
    **{f"{name}_b1": "of the ok cell at batch size 1" for name in AT_BATCH_1},
    "parity_cosine": "smallest over the cells that have it",
    "parity_max_abs": "largest over the cells that have it",
    "parity_max_rel": "largest over the cells that have it",
    "compile_total_s": "sum over the engines",
    "engine_size_mb": "sum over the engines",
    "cells_ok": "cells with verdict ok",
    "cells_total": "cells asked for",
}
"""The scalars of a lane run, at step 0, in the order in which they are written, and over which cells they are. MLflow's
page that compares runs opens with the first.
"""
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

_COLOURS = {
    "identity": "#555555",
    "torchscript": "#E69F00",
    "torch-compile": "#D55E00",
    "onnxruntime": "#0072B2",
    "openvino": "#009E73",
    "tensorrt": "#CC79A7",
    "tensorrt-rtx": "#8C6BB1",
    "tvm": "#56B4E9",
}
_OTHER_COLOURS = ("#A6611A", "#1B7837", "#B2182B", "#4D9221", "#6A3D9A", "#80796B")
_LIGHTER = {"host": 0.0, "xeon": 0.0, "gpu": 0.15, "orin": -0.12}
_DARKEST, _LIGHTEST = 0.15, 0.8
_STUDY_COLOUR = "#7F7F7F"


def colour(device: str = "", compiler: str = "", label: str = "") -> str:
    """The colour of a run in the UI: its hue tells the compiler, its lightness the device and the compiler's flags.

    Equal in every study; the hues are safe for the colour-blind. A run of several compilers is grey.
    """
    if not compiler:
        return _STUDY_COLOUR
    base = _COLOURS.get(compiler) or _OTHER_COLOURS[zlib.crc32(compiler.encode()) % len(_OTHER_COLOURS)]
    shift = _LIGHTER.get(device, _one_of(device, 0.2)) + (_one_of(label, 0.16) if label != compiler else 0.0)
    red, green, blue = (int(base[start : start + 2], 16) / 255 for start in (1, 3, 5))
    hue, lightness, saturation = colorsys.rgb_to_hls(red, green, blue)
    shade = colorsys.hls_to_rgb(hue, min(_LIGHTEST, max(_DARKEST, lightness + shift)), saturation)
    return "#" + "".join(f"{round(255 * part):02X}" for part in shade)


def _one_of(text: str, reach: float) -> float:
    """A number between ``-reach / 2`` and ``reach / 2`` that stands for a text."""
    return (zlib.crc32(text.encode()) / 2**32 - 0.5) * reach


def versions_of(tags: Mapping[str, str]) -> dict[str, str]:
    """Versions of packages in a run; none where the tag has another form."""
    try:
        known = json.loads(tags.get(Tag.VERSIONS, "{}"))
    except ValueError:
        return {}
    return {str(name): str(version) for name, version in known.items()} if isinstance(known, dict) else {}


def metric_name(text: str) -> str:
    """``text`` with characters that MLflow refuses in names of metrics, params and tags replaced by ``_``."""
    return re.sub(r"[^\w\-. /]|/(?=/)|^/|/$", "_", text, flags=re.ASCII)[:MAX_NAME]


def model_name(text: str) -> str:
    """``text`` with characters that MLflow refuses in names of LoggedModels replaced by ``-``."""
    return re.sub(r"\W+", "-", text, flags=re.ASCII).strip("-")[:MAX_NAME]


def cut(text: str, limit: int) -> str:
    """``text`` in at most ``limit`` characters, with a mark where it was cut."""
    if len(text) <= limit:
        return text
    note = f"… [cut from {len(text)} characters]"
    return text[: limit - len(note)] + note
