"""The probe of an engine, ``probe.npz``: write and read a batch with expected outputs, and judge outputs by it.

It has the inputs, the outputs of the baseline, the same in double precision, and the effect of rounding on them: so an
engine can be verified without its study.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlflow_ngraph import parity
from mlflow_ngraph.errors import EngineError, IncomparableError
from mlflow_ngraph.parity import Rounding
from mlflow_ngraph.text import counted

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mlflow_ngraph.compilers.spec import EngineSpec
    from mlflow_ngraph.workloads.materials import Source

    Arrays = list[NDArray[Any]]

FILE = "probe.npz"
_ROUNDING = tuple(field.name for field in fields(Rounding))


def write_probe(directory: Path, source: Source, batch: int) -> None:
    """Write the probe into the directory of a new engine."""
    import numpy as np

    arrays = {"input": source.example(batch), "output": source.reference(batch), "exact": source.exact(batch) or []}
    example = source.trials(batch, facts_only=True).example
    if example is not None and not example.unchecked:
        nothing = dict.fromkeys(_ROUNDING, math.nan)
        known = [nothing if one is None else asdict(one) for one in example.rounding]
        arrays["rounding"] = [np.array([one[name] for name in _ROUNDING]) for one in known]
    named = {f"{kind}_{index}": array for kind, several in arrays.items() for index, array in enumerate(several)}
    np.savez(directory / FILE, **named)  # type: ignore[arg-type] # numpy's types see allow_pickle here


@dataclass(frozen=True)
class Probe:
    """One batch of inputs, and the data that judge outputs for it."""

    inputs: Arrays
    outputs: Arrays
    """The baseline's."""
    exact: Arrays
    """The same in double precision; empty where that could not be had."""
    rounding: list[Rounding | None] | None
    """Effect of rounding on each output, None where rounding alone decides; None as a whole if unknown."""

    def problem(self, outputs: Sequence[NDArray[Any]], precision: str) -> str:
        """Describe how outputs differ from the model's; empty where they do not.

        The fixed tolerance of the precision decides where the effect of rounding is unknown.
        """
        try:
            parity.require_form(outputs, self.outputs)
            if self.rounding is None:
                return parity.problem(parity.compare(outputs, self.outputs), precision) or ""
            truth = self.exact or repeat(None)
            judged = map(parity.judge, outputs, self.outputs, truth, self.rounding, repeat(precision))
            return next((one.problem for one in judged if one is not None and one.problem), "")
        except IncomparableError as error:
            return str(error)

    def judges(self, precision: str) -> bool:
        """True if an output can tell a wrong engine from a right one."""
        return self.rounding is None or any(map(parity.tells, self.rounding, self.outputs, repeat(precision)))

    def misfit(self, spec: EngineSpec) -> str:
        """Describe how the probe contradicts the specification of its engine; empty where it does not."""
        for kind, arrays, tensors in (("input", self.inputs, spec.inputs), ("output", self.outputs, spec.outputs)):
            if len(arrays) != len(tensors):
                return f"it has {counted(len(arrays), kind)}, and the engine {len(tensors)}"
            for array, tensor in zip(arrays, tensors, strict=True):
                if (wanted := tensor.resolve(spec.probe_batch)) != array.shape:
                    return f"its {kind} {tensor.name!r} has the shape {array.shape}, and the engine's {wanted}"
        return ""


def read_probe(directory: Path) -> Probe:
    """Read the file of the probe. Raises `EngineError` if it is missing, or holds anything but plain arrays."""
    import numpy as np

    path = directory / FILE
    try:
        _check_arrays(path)
        # NumPy's own default, said aloud: nothing in a package is ever unpickled.
        with np.load(path, allow_pickle=False) as content:
            inputs, outputs, exact, rounding = (
                [content[f"{kind}_{index}"] for index in range(sum(name.startswith(kind) for name in content.files))]
                for kind in ("input", "output", "exact", "rounding")
            )
            known = [None if np.isnan(row).any() else Rounding(*map(float, row)) for row in rounding]
    except Exception as error:  # noqa: BLE001 - what reads archives and arrays raises anything on what is none
        raise EngineError(f"{path} is not the probe of an engine: {' '.join(str(error).split())[:200]}") from None
    if not inputs or not outputs:
        raise EngineError(f"{path} has no inputs or no outputs")
    if len(exact) not in {0, len(outputs)} or len(known) not in {0, len(outputs)}:
        raise EngineError(f"{path} does not say of each output how exact it is")
    if not all(np.isfinite(array).any() for array in (*inputs, *outputs) if array.size):
        raise EngineError(f"{path} has an array without a finite number, which proves nothing")
    return Probe(inputs, outputs, exact, known or None)


def _check_arrays(path: Path) -> None:
    """Refuse arrays that unpack to another size than they state, or to more than the file."""
    from numpy.lib import format as npy

    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if sum(member.file_size for member in members) > path.stat().st_size:
            raise ValueError("it unfolds to more than it has")
        for member in members:
            with archive.open(member) as stream:
                read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[npy.read_magic(stream)]
                shape, _, dtype = read(stream)
                if dtype.hasobject or math.prod(shape) * dtype.itemsize != member.file_size - stream.tell():
                    raise ValueError(f"{member.filename[:80]!r} is no array of numbers, or has another size")
