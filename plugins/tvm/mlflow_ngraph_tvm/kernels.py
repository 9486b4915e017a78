"""Kernels of an engine: recorded when it is compiled, and read by `mlflow-ngraph results explain`."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mlflow_ngraph import credentials
from mlflow_ngraph.compilers.explanation import Explanation, Kernel
from mlflow_ngraph.errors import CompileError

FILE = "kernels.json"
_CALL = re.compile(r"^\s*call\s+(\S+)\s+in:", re.MULTILINE)
_PREPACKED = "_prepacked"
"""TVM's suffix of kernels with rewritten weights."""
_SUFFIX = re.compile(rf"\d*({_PREPACKED})?$")
_MOVES = re.compile(r"^(fused_)?(te_)?(layout_transform|transpose|permute_dims)")
_SECTION = re.compile(r"^\s*\d+\s+\.text\s+([0-9a-f]+)", re.MULTILINE)
_SYMBOL = re.compile(r"^[0-9a-f]+ <([^>]+)>:$")
_WIDTHS = (("zmm", "avx512"), ("ymm", "avx2"), ("xmm", "sse"), ("z", "sve"), ("v", "neon"))
_REGISTER = re.compile(r"%(zmm|ymm|xmm)\d|\b(z|v)\d+\.[0-9]*[sd]")
_SPECIAL = (("tdp", "amx"), ("vpdpbusd", "vnni"), ("vdpbf16", "avx512_bf16"), ("sdot", "dotprod"), ("udot", "dotprod"))
"""Instructions of matrix and dot-product units."""


@dataclass(frozen=True)
class Contents:
    """Kernels of an engine at compile time."""

    nodes_before: int
    calls: Sequence[str]
    """Kernels in the order in which one inference calls them."""
    groups: Mapping[str, Sequence[str]]
    """Operations of kernels that fuse several."""
    tuned: Sequence[str] = ()
    """Kernels with a schedule from the search."""
    gpu: bool = False
    source_bytes: int | None = None
    """Size of the source code that was generated for a GPU."""
    facts: Mapping[str, str | int | float | bool] = field(default_factory=dict)

    def write(self, directory: Path) -> None:
        (directory / FILE).write_text(json.dumps(asdict(self), indent=1, sort_keys=True), encoding="utf-8")

    @classmethod
    def read(cls, directory: Path) -> Contents:
        """Read the kernels from an engine's directory. Raises `CompileError` if the file is missing or damaged."""
        try:
            return cls(**json.loads((directory / FILE).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise CompileError(f"{directory} holds no engine that can be explained: {error}") from None


def called(program: str) -> list[str]:
    """Kernels that TVM's virtual machine calls, from the text of its program."""
    return [name for name in _CALL.findall(program) if not name.startswith("vm.builtin.")]


def explain(directory: Path, library: str) -> Explanation:
    """Explain the engine in a directory, as recorded when it was compiled."""
    contents = Contents.read(directory)
    code = MachineCode.of(directory / library)
    tuned = set(contents.tuned)
    kernels = []
    for name in contents.calls:
        how = "tuned" if name in tuned else "default schedule" if contents.gpu else "no schedule"
        isa = "cuda" if contents.gpu else code.isa(name)
        kernels.append(
            Kernel(
                name,
                _SUFFIX.sub("", name.removeprefix("fused_")),
                _group(contents.groups, name),
                implementation=f"{isa}, {how}" if isa else how,
                precision="fp32",
            )
        )
    facts = {**contents.facts, "tuned_kernels": sum(name in tuned for name in contents.calls)}
    if code.missing:
        facts["machine_code"] = code.missing
    moves = sum(bool(_MOVES.match(kernel.name)) for kernel in kernels)
    size = contents.source_bytes if contents.gpu else code.size
    return Explanation(contents.nodes_before, len(kernels), moves, tuple(kernels), size, facts)


def _group(groups: Mapping[str, Sequence[str]], name: str) -> tuple[str, ...]:
    """Operations of a kernel, to whose name passes after the fusion may have appended."""
    name = name.removesuffix(_PREPACKED)
    for end in range(len(name), 0, -1):
        if name[:end] in groups and (end == len(name) or name[end:].isdigit()):
            return tuple(groups[name[:end]])
    return ()


class MachineCode:
    """Facts of the code in a shared library, from ``objdump``."""

    def __init__(self, size: int | None = None, isas: Mapping[str, str] | None = None, missing: str = "") -> None:
        self.size = size
        self.missing = missing
        """Reason why nothing is known."""
        self._isas = isas or {}

    @classmethod
    def of(cls, library: Path) -> MachineCode:
        tool = shutil.which("objdump")
        if tool is None:
            return cls(missing="unknown: objdump is not installed (Debian, Ubuntu: apt-get install binutils)")
        headers = _output(tool, "--section-headers", library)
        section = _SECTION.search(headers)
        listing = _output(tool, "--disassemble", "--no-show-raw-insn", library)
        return cls(int(section[1], 16) if section else None, _isas(listing))

    def isa(self, kernel: str) -> str:
        return self._isas.get(kernel, "")


def _output(tool: str, *arguments: Any) -> str:
    command, env = [tool, *map(str, arguments)], credentials.clean_environment()
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    if done.returncode != 0:
        raise CompileError(f"objdump cannot read {arguments[-1]}: {done.stderr.strip()}")
    return done.stdout


def _isas(listing: str) -> dict[str, str]:
    """Widest vector registers, and special units, by kernel."""
    registers: dict[str, set[str]] = {}
    special: dict[str, set[str]] = {}
    kernel = ""
    for line in listing.splitlines():
        symbol = _SYMBOL.match(line)
        if symbol:
            # The body of a parallel loop is a function of its own.
            kernel = symbol[1].removeprefix("__tvm_ffi_").partition("_compute_")[0]
            continue
        for first, second in _REGISTER.findall(line):
            registers.setdefault(kernel, set()).add(first or second)
        for start, name in _SPECIAL:
            if f"\t{start}" in line:
                special.setdefault(kernel, set()).add(name)
    isas = {}
    for name, used in registers.items():
        widest = next(isa for register, isa in _WIDTHS if register in used)
        isas[name] = " ".join([widest, *sorted(special.get(name, ()))])
    return isas
