"""Validated `Study` from the name of a study and the texts of options that replace its keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

from mlflow_ngraph import documents
from mlflow_ngraph import study as studies
from mlflow_ngraph.cli.lists import items, whole
from mlflow_ngraph.compilers.registry import COMPILERS
from mlflow_ngraph.errors import StudyError
from mlflow_ngraph.study import Study

DEFAULT_STUDY = "quick"


def requested(name: str | None, overrides: Mapping[str, Any]) -> Study:
    """The study called ``name`` with some keys replaced.

    Without a name the ready-made study ``quick`` lends what ``overrides`` leaves out; with other workloads it is
    that study no more, and is called ``adhoc``.

    Raises `StudyError` if the file or an override is invalid, and `UnknownNameError` if there is no compiler of a name.
    Whoever plans the study would find out too, after importing what plans are made of.
    """
    study = _read(name, overrides)
    for choice in study.compilers:
        COMPILERS.require(choice.name)
    return study


def _read(name: str | None, overrides: Mapping[str, Any]) -> Study:
    given = {key: value for key, value in overrides.items() if value is not None}
    if name is None and "workloads" in given:
        given = {"name": "adhoc", "description": "", **given}
    name = name or DEFAULT_STUDY
    if not given:
        return studies.load(name)
    try:
        return studies.load(name, given)
    except StudyError:
        # Blame the file only if it is wrong on its own.
        base = studies.load(name)
        return studies.parse({**base.model_dump(mode="json"), **given}, "command line")


def overrides(
    *,
    device: str | None = None,
    build_for: str | None = None,
    workloads: Sequence[str] | str | None = None,
    compilers: Sequence[str] | str | None = None,
    baseline: str | None = None,
    batch_sizes: str | None = None,
    precision: str | None = None,
    repetitions: str | None = None,
    threads: str | None = None,
    mode: str | None = None,
    arrivals: str | None = None,
    max_p99_ms: str | None = None,
    seed: str | None = None,
    cache: str | None = None,
    purpose: str | None = None,
    objective: str | None = None,
    within: str | None = None,
    **bounds: Any,
) -> dict[str, Any]:
    """The keys of a study that the options replace; empty text and None leave the study's own value.

    Raises `StudyError` if a number is no number, a compiler's flags are not ``key=value``, or two devices are named.
    """
    if device and build_for and not build_for.startswith(device):
        raise StudyError(f"command line: --build-for {build_for} is another device than --device {device}")
    replacements: dict[str, Any] = {
        "device": device,
        "build_for": build_for,
        "workloads": items(workloads),
        "compilers": [_compiler(text) for text in items(compilers)],
        "baseline": baseline,
        "batch_sizes": [whole("batch_sizes", text) for text in items(batch_sizes)],
        "precision": items(precision),
        "repetitions": repetitions if repetitions in (None, "", "auto") else whole("repetitions", repetitions),
        "threads": int(threads) if threads and threads.isdigit() else threads,
        "mode": mode,
        "arrivals": _arrivals(arrivals, max_p99_ms),
        "seed": whole("seed", seed) if seed else None,
        "cache": cache,
        "purpose": purpose,
        "objective": objective,
        "within": within,
        "bounds": {name: value for name, value in bounds.items() if value is not None},
    }
    return {key: value for key, value in replacements.items() if value not in (None, "", [], {})}


def _arrivals(rates: str | None, max_p99_ms: str | None) -> dict[str, Any]:
    """Keys of ``arrivals`` that the options replace."""
    replacements: dict[str, Any] = {}
    if rates:
        replacements["rates"] = rates if rates == "auto" else [_decimal("arrivals", text) for text in items(rates)]
    if max_p99_ms:
        replacements["max_p99_ms"] = _decimal("max_p99_ms", max_p99_ms)
    return replacements


def _decimal(key: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise StudyError(f"command line: {key}: expected a number, found {text!r}") from None


def _compiler(text: str) -> str | dict[str, Any]:
    """``openvino`` or ``openvino?performance_hint=throughput&num_streams=2``; flags are typed as in a study file."""
    name, question, query = text.partition("?")
    if not question:
        return name
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True)
    except ValueError:
        raise StudyError(
            f"command line: compilers: write flags as name?flag=value&flag=value, found {text!r}"
        ) from None
    flags = {key: _scalar(value) for key, value in pairs}
    if len(flags) < len(pairs):
        raise StudyError(f"command line: compilers: a flag stands twice in {text!r}")
    return {"name": name, "flags": flags}


def _scalar(text: str) -> Any:
    """The value that ``text`` would have in a study file, or the text itself if that is no single value."""
    try:
        value = documents.yaml_value(text)
    except ValueError:
        return text
    return value if isinstance(value, (str, int, float, bool)) or value is None else text
