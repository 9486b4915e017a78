"""Figures that follow from others of one source, in the same way for the paper's tables and for measurements."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from evidence.figures import Figure, average, select
from mlflow_ngraph.estimates import Estimate, exactly
from mlflow_ngraph.metrics import EAGER
from mlflow_ngraph_report.model_tables import BANDS

_CHANGES = (("orin", "tensorrt", "EfficientNets", "Swins"), ("xeon", "openvino", "Swins", "EfficientNets"))
"""Figure 1: the family that leads in eager execution, and the one that leads when compiled."""
_GROUPS = (("ConvNeXts",), ("ResNets", "EfficientNets"), ("DeiTs", "Swins"))


def derived(figures: Sequence[Figure]) -> list[Figure]:
    """All of them."""
    return [*_changes(figures), *_nearness(figures), *_identities(figures), *_retentions(figures)]


def _changes(figures: Sequence[Figure]) -> Iterator[Figure]:
    """The smaller of both leads of a pair of models: above 1, the pair changes places. Its error is the larger one."""
    for device, compiler, ahead, behind in _CHANGES:
        rates = {one.key(): one for one in select(figures, "throughput", device=device, compiler=[EAGER, compiler])}
        eager = [one for one in rates.values() if one.compiler == EAGER]
        for first, second in product(eager, eager):
            if (first.family, second.family) != (ahead, behind) or first.key("label") != second.key("label"):
                continue
            fast, slow = (rates.get(replace(one, compiler=compiler).key()) for one in (first, second))
            if fast is not None and slow is not None:
                leads = first.over(second).part, slow.over(fast).part
                least = Estimate(*(
                    choose([getattr(lead, name) for lead in leads])
                    for choose, name in ((np.min, "log"), (np.max, "error"), (np.min, "freedom"))
                ))  # fmt: skip
                yield replace(fast, quantity="change of rank", part=least, label=f"{first.label} and {second.label}")


def _nearness(figures: Sequence[Figure]) -> Iterator[Figure]:
    """ConvNeXt's speed-up over the middle between both groups, turned so that transformers are above 1."""
    speedups = select(figures, "speed-up")
    for key in dict.fromkeys(one.key("label") for one in speedups):
        here = [one for one in speedups if one.key("label") == key]
        groups = [[one for one in here if one.family in families] for families in _GROUPS]
        if all(groups):
            hybrid, convolution, transformer = (average(group, "ConvNeXts") for group in groups)
            nearness = hybrid.over(average([convolution, transformer], ""), quantity="nearness to transformers")
            yield nearness if transformer.value > convolution.value else nearness.inverse()


def _identities(figures: Sequence[Figure]) -> Iterator[Figure]:
    """BSR over the speed-up relative to that at batch 1, or that of the paper's smaller batch sizes."""
    # Within a study: its batch scaling resilience refers to its own batch size 1.
    speedups = {(one.study, one.key()): one.value for one in select(figures, "speed-up")}
    for one in select(figures, "BSR"):
        base = speedups.get((one.study, replace(one, batches=(1,) if one.machine else BANDS[0]).key()))
        if base is not None:
            ratio = one.value * base / speedups[one.study, one.key()]
            yield replace(one, quantity="BSR over its definition", part=exactly(ratio))


def _retentions(figures: Sequence[Figure]) -> Iterator[Figure]:
    """Retention of attention over convolution: geometric means, with their errors over cells."""
    compilers = ["onnxruntime", "openvino", "tensorrt"]
    cells = [select(figures, "depth retention", block=block, compiler=compilers) for block in ("mha", "conv")]
    if min(map(len, cells)) > 1:
        logs = [np.array([one.part.log for one in own]) for own in cells]
        attention, convolution = (
            Estimate(own.mean(), own.std(ddof=1) / math.sqrt(own.size), np.array(own.size - 1.0)) for own in logs
        )
        values = [np.exp(own) for own in logs]
        said = (f"{what} {a:.3g} and {b:.3g}" for what, (a, b) in (
            ("means", [own.mean() for own in values]), ("medians", [np.median(own) for own in values]),
        ))  # fmt: skip
        yield Figure("retention of attention over convolution", attention.over(convolution), label=", ".join(said))
