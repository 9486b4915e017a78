"""The results of conformance cases: a file of lines, and a page of Markdown."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from mlflow_ngraph.devices.fingerprint import fingerprint, summary

BARE = {"bare": "onnxruntime", "openvino-bare": "openvino"}
"""Stand among the compilers for runtimes without this package, each with the compiler that has to do what it does."""
VERDICTS = ("ok", "unsupported", "wrong", "failed")
NO_TENSOR = "not a tensor"
_TITLES = {"bare": "ONNX Runtime, bare", "openvino-bare": "OpenVINO, bare"}
_ABOUT = ("onnx", "onnxruntime", "openvino", "apache-tvm", "torch")
_LONGEST = 140
_CASES = 2
"""Cases that a line of the list names."""
_EAGER = "identity"
_LEFT_OUT = (
    (re.compile(r"^workload onnx:\S+:? "), ""),
    (re.compile(r"^does not run on .*?\]: "), "no reference: "),
    (re.compile(r"^(?:model|model\.onnx): "), ""),
    (re.compile(r"\[ONNXRuntimeError\] : \d+ : \w+ : "), ""),
    (re.compile(r"\S*materials/source/"), ""),
    (re.compile(r"input '\w+' has type"), "an input has type"),
    (re.compile(r" \(opset \d+\)$"), ""),
    (re.compile(r"(?<![A-Za-z0-9])(?:0x[0-9a-f]+|\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?![A-Za-z0-9])"), "#"),
)
"""What differs from case to case, and what stands in its place."""


@dataclass(frozen=True)
class Row:
    """What became of a case with a compiler."""

    case: str
    group: str
    operators: list[str]
    compiler: str
    verdict: str
    reason: str


def write(path: Path, row: Row) -> None:
    """Append a row."""
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{json.dumps(asdict(row))}\n")


def read(path: Path) -> list[Row]:
    """The newest row of each case and compiler."""
    if not path.is_file():
        return []
    found = [Row(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    return list({(row.case, row.compiler): row for row in found}.values())


def lost(rows: Sequence[Row]) -> list[Row]:
    """What a runtime does right by itself, and its adapter does not."""
    right = {(BARE[row.compiler], row.case) for row in rows if row.compiler in BARE and row.verdict == "ok"}
    return [row for row in rows if row.verdict != "ok" and (row.compiler, row.case) in right]


def page(rows: Sequence[Row], compilers: Sequence[str]) -> str:
    """The tables, and what is not ok by compiler and operator."""
    found = [name for name in compilers if any(row.compiler == name for row in rows)]
    lines = [*_introduction(rows), "", *_totals(rows, found), "", *_groups(rows, found)]
    eager = {row.case: _short(row.reason) for row in rows if row.compiler == _EAGER}
    for compiler in found:
        own = [row for row in rows if row.compiler == compiler]
        shared = (
            []
            if compiler == _EAGER
            else [row for row in own if row.reason and eager.get(row.case) == _short(row.reason)]
        )
        lines += ["", *_problems([row for row in own if row not in shared], compiler, _refused(shared))]
    return "\n".join([*lines, "", _where()]) + "\n"


def _introduction(rows: Sequence[Row]) -> list[str]:
    cases = {row.case: row.verdict for row in rows}
    return [
        "# ONNX conformance",
        "",
        "Made by `python benchmarks/onnx_conformance.py`; not written by hand.",
        "",
        f"The {len(cases)} cases that the package `onnx` brings: nodes of every operator, models that PyTorch exported, and the",
        "nine `light_*` networks of IR version 3. Each case became a workload with its inputs as `samples`, was prepared,",
        "compiled, saved, loaded and run, and its outputs were compared with those that come with the case.",
        "",
        "* `ok`: same number of outputs, element types and shapes, and equal values: integers exactly, others within the",
        "  tolerance of the case (0.1 %), or eight units in the last place of the largest element.",
        "* `unsupported`: refused with a reason, by the compiler or by this package: the PyTorch compilers start from the",
        "  graph as a module, and take no operator that the converter does not have. Without a PyTorch module ONNX Runtime",
        "  gives the reference; a case that neither runs has none, and nothing is compiled. Element types that NumPy lacks",
        "  (bfloat16, eight bits and fewer) are refused as inputs.",
        "* `wrong`: ran, with other outputs than the case has. A study calls that `parity_failed` if the baseline has them.",
        "* `failed`: neither; also crashes, and cases that took too long.",
        f"* `{NO_TENSOR}`: an input or output is a string, a sequence, a map or an optional; workloads have tensors only.",
        "",
        *_kept(rows),
        _merged(rows),
    ]


def _kept(rows: Sequence[Row]) -> Iterator[str]:
    """How many of the cases that a runtime does by itself its adapter does."""
    losses = Counter(row.compiler for row in lost(rows))
    for name, compiler in BARE.items():
        count = sum((row.compiler, row.verdict) == (name, "ok") for row in rows)
        runtime = _TITLES[name].removesuffix(", bare")
        yield f"{runtime} by itself, without this package, does {count} cases; through its adapter {count - losses[compiler]} of them are ok."


def _merged(rows: Sequence[Row]) -> str:
    """Which cases the compiler got that has many of them in one model."""
    eager = {row.case for row in rows if (row.compiler, row.verdict) == (_EAGER, "ok")}
    tried = sum(row.compiler == "torch-compile" for row in rows)
    return (
        f"torch-compile, which starts a C++ compiler for every model, was given {tried} of the {len(eager)} cases that eager "
        "execution does, many of them in one model."
    )


def _totals(rows: Sequence[Row], compilers: Sequence[str]) -> list[str]:
    lines = ["## Compilers", "", *_head(("compiler", "cases", *VERDICTS, NO_TENSOR))]
    for compiler in compilers:
        counts = Counter(row.verdict for row in rows if row.compiler == compiler)
        numbers = [counts.total(), *(counts[verdict] for verdict in (*VERDICTS, NO_TENSOR))]
        lines.append(_line([_TITLES.get(compiler, compiler), *map(str, numbers)]))
    return lines


def _groups(rows: Sequence[Row], compilers: Sequence[str]) -> list[str]:
    titles = [_TITLES.get(compiler, compiler) for compiler in compilers]
    lines = ["## Groups", "", "`ok` of the cases that are tensors.", "", *_head(("group", *titles))]
    for group in dict.fromkeys(row.group for row in rows):
        cells = [group]
        for compiler in compilers:
            chosen = [
                row for row in rows if (row.group, row.compiler) == (group, compiler) and row.verdict != NO_TENSOR
            ]
            done = sum(row.verdict == "ok" for row in chosen)
            cells.append(f"{done} of {len(chosen)}" if chosen else "")
        lines.append(_line(cells))
    return lines


def _refused(rows: Sequence[Row]) -> int:
    return sum(row.verdict != NO_TENSOR for row in rows)


def _problems(rows: Sequence[Row], compiler: str, shared: int) -> Iterator[str]:
    """What is not ok: reasons with how often each was given, most frequent first, and which operators it met.

    Parameters
    ----------
    shared: cases that are left out, because eager execution has the same reason.
    """
    yield f"## {_TITLES.get(compiler, compiler)}"
    yield ""
    if shared:
        yield f"Without the {shared} cases that `{_EAGER}` refuses for the same reason."
        yield ""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.verdict in VERDICTS[1:]:
            groups.setdefault((row.verdict, _short(row.reason)), []).append(row)
    if not groups:
        yield "All is ok."
        return
    yield from _head(("verdict", "cases", "reason", "operators", "such as"))
    ordered = sorted(groups.items(), key=lambda item: (VERDICTS.index(item[0][0]), -len(item[1]), item[0][1]))
    for (verdict, reason), chosen in ordered:
        operators = Counter(_about(row) for row in chosen)
        such = ", ".join(f"`{row.case}`" for row in chosen[:_CASES])
        yield _line([verdict, str(len(chosen)), reason, ", ".join(operators), such])


def _about(row: Row) -> str:
    """The operator that a case is about: its only one, or what the case is called."""
    if len(row.operators) == 1:
        return row.operators[0]
    return row.group if row.group != "node" else "several"


def _short(reason: str) -> str:
    """A reason without the numbers of one case, so that equal ones count together, in the page's own characters."""
    text = reason
    for pattern, replacement in _LEFT_OUT:
        text = pattern.sub(replacement, text)
    text = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
    return "".join(f"\\{sign}" if sign in "|<>*_[]`" else sign for sign in text)


def _where() -> str:
    versions = ", ".join(f"{package} {version(package)}" for package in _ABOUT)
    return f"On {summary(fingerprint())}, with {versions}."


def _head(titles: Sequence[str]) -> list[str]:
    return [_line(titles), _line([":--"] * len(titles))]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
