"""Make unique names of workloads for tables from their labels, and match such names with workloads."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from mlflow_ngraph.workloads.base import CONTENT, WorkloadRef


def unique_names(labels: Mapping[str, str]) -> dict[str, str]:
    """Unique name for each workload: its label, and where needed the first property that distinguishes it."""
    by_label: dict[str, list[str]] = defaultdict(list)
    for workload, label in labels.items():
        by_label[_own(workload, label)].append(workload)
    named = {}
    for label, workloads in by_label.items():
        shared = Counter(mark for workload in workloads for mark in {*_marks(workload)})
        for workload in workloads:
            alone = (mark for mark in _marks(workload) if shared[mark] == 1)
            # The whole reference is a mark, and no two workloads have it in common.
            named[workload] = f"{label} ({next(alone)})" if len(workloads) > 1 else label
    return named


def matches(name: str, workload: str, label: str) -> bool:
    """True if a name is a workload's reference without digest or options, or its label among fewer workloads."""
    ref = WorkloadRef.recorded(workload)
    if CONTENT.sub("", workload) == name or (ref is not None and ref.model == name):
        return True
    own, bracket, mark = name.removesuffix(")").partition(" (")
    return bool(bracket) and own == _own(workload, label) and mark in _marks(workload)


def base_label(name: str) -> str:
    """Label that a unique name was made from, by its form."""
    label, bracket, rest = name.partition(" (")
    return label if bracket and rest.endswith(")") else name


def _own(workload: str, label: str) -> str:
    """Label of a workload without additions."""
    marked = (f" ({mark})" for mark in _marks(workload))
    return label.removesuffix(next((mark for mark in marked if label.endswith(mark)), ""))


def _marks(workload: str) -> Iterator[str]:
    """Properties that may distinguish a workload, the shortest first: digest, scheme, end of target, options, all."""
    if content := CONTENT.search(workload):
        yield content[0][1:]
    ref = WorkloadRef.recorded(workload)
    if ref is not None:
        yield ref.scheme
        parts = ref.target.split("/")
        yield from ("/".join(parts[-count:]) for count in range(1, len(parts) + 1))
        yield from (f"{name}={value}" for name, value in sorted(ref.options.items()))
    yield workload
