"""`Rival` of an answer, with sentences and commands to measure again. Imports no pandas.

Cached answers are shown before pandas could be imported.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from mlflow_ngraph import home
from mlflow_ngraph.text import NO_INTERVAL, counted, rounded
from mlflow_ngraph.verdicts import Verdict
from mlflow_ngraph.workloads.base import CONTENT
from mlflow_ngraph.workloads.naming import base_label

_FOUND = {"chain": ", by a chain of pairs", "apart": ", measured at another time"}
"""Remarks on ratios without shared rounds."""
_MANY = 10
"""Times the measured repetitions that the time limit of a cell may not allow."""
COLUMNS = (
    "workload", "label", "device", "compiler", "compiler_label", "precision", "mode", "threads", "batch", "verdict",
    "reason", "noise", "cell", "study", "study_id", "run_id", "model_id", "engine", "tracking_uri",
)  # fmt: skip
"""Columns of the tidy table in a rival's row."""


@dataclass(frozen=True)
class Rival:
    """A cell that could beat an answer."""

    row: Mapping[str, Any]
    """Identity of the cell, with None for unknown values."""
    metric: str
    unit: str
    better: str
    value: float | None
    """None where it was not measured."""
    ci_low: float | None
    ci_high: float | None
    same_choice: bool = False
    """It differs from the answer at most in the batch size."""
    same_engine: bool = False
    """The answer's engine serves it as well."""
    ratio: float | None = None
    """Ratio to the answer; None where the cell cannot rank, or the ratio is unknown."""
    ratio_ci_low: float | None = None
    ratio_ci_high: float | None = None
    how: str = ""
    """Kind of comparison: ``same rounds``, ``chain`` (of such pairs), or ``apart`` (figures as they stand)."""
    repetitions: int | None = None
    """Repetitions that would decide, if the figures are right; None where they cannot."""
    loaded: bool = False
    """Other load may have slowed one of both more than the other: more repetitions would not tell."""

    @property
    def clause(self) -> str:
        if self.ratio is not None:
            found = _FOUND.get(self.how, "")
            if self.ratio_ci_low is None or self.ratio_ci_high is None:
                return f"{named(self.row)} ({self.ratio:.3g} of that{found}; {NO_INTERVAL})"
            return f"{named(self.row)} ({self.ratio:.3g} [{self.ratio_ci_low:.3g}, {self.ratio_ci_high:.3g}] of that{found})"
        if self.value is None:
            return f"{named(self.row)} was left out ({self.row['reason']})"
        if self.row["verdict"] == str(Verdict.OK):
            return f"{named(self.row)} measured {figure(self.value, self.metric, self.unit)}, which has no interval"
        return f"{named(self.row)} measured {figure(self.value, self.metric, self.unit)} but is {self.row['verdict']}"

    def to_plain(self) -> dict[str, Any]:
        return {**vars(self), "row": dict(self.row)}


def sentence(
    rivals: Sequence[Rival], answer: Mapping[str, Any] | None, figures: str = "", where: str = "", gain: str = ""
) -> str:
    """Sentence about the rivals of an answer, with the command that measures again at its end.

    There is at least one, from `rivals.rivals_of`. ``answer`` is the row of the best known cell, and ``figures`` its
    figure, such as ``61.2 samples/s``. ``where`` are model and device, where they have to be named. ``gain`` is what is
    certain all the same, such as ``1.73 [1.66, 1.82] times eager``.
    """
    head = f"undecided for {where}" if where else "undecided"
    named_answer = f"{named(answer)} ({figures})" if answer is not None else ""
    could = listed([rival.clause for rival in sorted(rivals, key=lambda rival: rival.ratio is None)])
    if any(rival.ratio is not None for rival in rivals):
        text = f"{head} between {named_answer} and {could}"
        if gain:
            text = f"{where}: {gain} with {named_answer}; undecided: {could} could be better"
    else:
        beaten = f"could beat {named_answer}" if named_answer else "nothing else is ok"
        text = f"{head}: {could}; {beaten}"
    return f"{text}; {' '.join(filter(None, measuring(rivals, answer)))}"


def measuring(rivals: Sequence[Rival], answer: Mapping[str, Any] | None) -> tuple[str, str]:
    """Words before a command, and the command that measures again rivals of the same model, device and precision.

    The command is empty for a study of another home, which the words name then.

    There is at least one rival. ``answer`` is the row of the answer, which is measured together with its rivals.
    """
    first = rivals[0].row
    study = home.own_study(str(first["study_id"]))
    if study is None:
        # Names of models may mean others here.
        quiet = ", while nothing else computes there" if any(rival.loaded for rival in rivals) else ""
        return f"measure again where study {first['study_id']} was run{quiet}", ""
    same = ("workload", "device", "precision", "mode", "threads")
    meant = [rival for rival in rivals if all(rival.row[name] == first[name] for name in same)]
    rows = [rival.row for rival in meant]
    if answer is not None and any(rival.ratio is not None for rival in meant):
        rows = [answer, *rows]
    compilers = list(dict.fromkeys(_compiler(str(row["compiler_label"])) for row in rows))
    started = study / home.STARTED_IN  # its names of modules and files are relative to that
    before = [["cd", started.read_text(encoding="utf-8")]] if started.is_file() else []
    words = ["mlflow-ngraph", "benchmark", str(study / home.STUDY_FILE)]
    if "," not in first["workload"]:
        words += ["--workloads", CONTENT.sub("", str(first["workload"]))]
    if not any("," in text for text in compilers):
        words += ["--compilers", ",".join(compilers)]
    words += ["--batch-sizes", ",".join(map(str, sorted({int(row["batch"]) for row in rows})))]
    words += ["--precision", str(first["precision"]), "--device", base_label(str(first["device"]))]
    threads = "default" if first["threads"] is None else str(first["threads"])
    words += ["--mode", str(first["mode"]), "--threads", threads]
    repetitions = max((rival.repetitions for rival in meant if rival.repetitions is not None), default=None)
    does = "measure again while nothing else computes:" if any(rival.loaded for rival in meant) else "measure again:"
    if repetitions is not None:
        words += ["--repetitions", str(repetitions)]
        measured = (answer or {}).get("repetitions") or repetitions
        limit = ", if limits.cell_seconds of the study allows so many" if repetitions > _MANY * measured else ""
        does = f"{counted(repetitions, 'repetition')} would tell{limit}:"
    return does, " && ".join(map(shlex.join, [*before, words]))


def named(row: Mapping[str, Any]) -> str:
    """Cell without the model: ``onnxruntime at batch 8``, ``openvino bf16 at batch 1``."""
    return f"{chosen(row)} at batch {row['batch']}"


def chosen(row: Mapping[str, Any]) -> str:
    """Compiler with flags, and a precision other than fp32."""
    precision = "" if row["precision"] == "fp32" else f" {row['precision']}"
    return f"{row['compiler_label']}{precision}"


def figure(value: float, metric: str, unit: str) -> str:
    """Figure with as many digits as its interval has in sentences, and its unit, or its name where it has none."""
    return f"{metric} {rounded(value, 3)}" if unit == "1" else f"{rounded(value, 3)} {unit}"


def _compiler(label: str) -> str:
    """Compiler with flags, as the command line takes it."""
    name, bracket, flags = label.removesuffix("]").partition("[")
    return f"{name}?{urlencode(dict(part.partition('=')[::2] for part in flags.split(',')))}" if bracket else name


def listed(clauses: Sequence[str]) -> str:
    """First clause, and the number of others."""
    return clauses[0] + (f"; and {len(clauses) - 1} more" if len(clauses) > 1 else "")
