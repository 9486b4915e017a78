"""What an engine needs to be loaded and tried where nobody knows its study, written into its directory when it is built.

``loading.json`` says how the engine is loaded: with which flags, for which target, with which packages. ``probe.npz``
is one seeded batch with the outputs of the baseline, the same in double precision, and what rounding does to them. Both are files of the engine like those of the compiler:
their digests are in the journal, in the store and in the manifest.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from importlib.metadata import PackageNotFoundError, version
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, ValidationError

from mlflow_ngraph import documents, parity
from mlflow_ngraph.compilers.base import Compiler, FlagValue, Target
from mlflow_ngraph.compilers.host import bringing
from mlflow_ngraph.engines.store import BatchSize, FrozenModel
from mlflow_ngraph.errors import EngineError, IncomparableError
from mlflow_ngraph.parity import Rounding

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mlflow_ngraph.workloads.materials import Source

    Arrays = list[NDArray[Any]]

FILE = "loading.json"
PROBE = "probe.npz"
_ROUNDING = tuple(field.name for field in fields(Rounding))
_OF_SCHEME = {"timm": ("timm", "torchvision"), "onnx": ("onnx",)}
"""Distributions without which a live module of a workload cannot be built again, by the workload's scheme."""


class LoadSpec(FrozenModel):
    """The content of ``loading.json``."""

    schema_version: Literal[1] = 1
    compiler: str
    flags: dict[str, FlagValue]
    """Every flag as it was asked for, defaults included."""
    target: dict[str, FlagValue]
    """Precision, mode, threads, accelerator, transfers."""
    batch_sizes: list[BatchSize] = Field(min_length=1)
    """Batch sizes that the engine was compiled for."""
    packages: dict[str, str]
    """Versions of the distributions that loading needs beside this package, by their names."""
    probe_batch: BatchSize
    """Batch size of the probe."""

    @classmethod
    def read(cls, directory: Path) -> LoadSpec:
        """Read it from an engine's directory.

        Raises
        ------
        EngineError
            There is none, or it is not readable.
        """
        path = directory / FILE
        try:
            return cls.model_validate_json(documents.content(path))
        except OSError as error:
            raise EngineError(f"{path} is not readable: {error.strerror}; compile the engine again") from None
        except ValidationError:
            raise EngineError(f"{path} does not say how an engine is loaded; compile the engine again") from None

    def aim(self) -> Target:
        """What the engine was compiled for.

        Raises
        ------
        EngineError
            It was compiled for something that this version does not know.
        """
        try:
            return Target(**self.target)  # type: ignore[arg-type] # checked by the adapter, which refuses what it lacks
        except TypeError:
            known = ", ".join(field.name for field in fields(Target))
            raise EngineError(f"the engine has the target {self.target}; known here are {known}") from None


def write(directory: Path, compiler: Compiler[Any], target: Target, batch_sizes: Sequence[int], source: Source) -> None:
    """Write both files into the directory of an engine that was compiled just now.

    The probe has the smallest batch size of the engine, so that it stays small.
    """
    import numpy as np

    batch = min(batch_sizes)
    loading = LoadSpec(
        compiler=compiler.name,
        flags=compiler.flags.model_dump(mode="json"),
        target=target.content(),
        batch_sizes=list(batch_sizes),
        packages=packages(compiler, target, source.materials.ref.scheme),
        probe_batch=batch,
    )
    (directory / FILE).write_text(loading.model_dump_json(indent=1) + "\n", encoding="utf-8")
    arrays = {"input": source.example(batch), "output": source.reference(batch), "exact": source.exact(batch) or []}
    example = source.trials(batch, facts_only=True).example
    if example is not None and not example.unchecked:
        nothing = dict.fromkeys(_ROUNDING, math.nan)
        known = [nothing if one is None else asdict(one) for one in example.rounding]
        arrays["rounding"] = [np.array([one[name] for name in _ROUNDING]) for one in known]
    named = {f"{kind}_{index}": array for kind, several in arrays.items() for index, array in enumerate(several)}
    np.savez(directory / PROBE, **named)  # type: ignore[arg-type] # numpy's types see allow_pickle here


@dataclass(frozen=True)
class Probe:
    """One batch of inputs, and what tells whether outputs for them are the model's."""

    inputs: Arrays
    outputs: Arrays
    """The baseline's."""
    exact: Arrays
    """The same in double precision; empty where that could not be had."""
    rounding: list[Rounding | None] | None
    """What rounding does to each output, None where it decides alone; None as a whole where nobody knows."""

    def problem(self, outputs: Sequence[NDArray[Any]], precision: str) -> str:
        """Why outputs are not the model's; empty where nothing speaks against them.

        Where it is not known what rounding does to the model, the fixed tolerance of the precision decides.
        """
        try:
            if self.rounding is None or len(outputs) != len(self.outputs):
                return parity.problem(parity.compare(outputs, self.outputs), precision) or ""
            truth = self.exact or self.outputs
            judged = map(parity.judge, outputs, self.outputs, truth, self.rounding, repeat(precision))
            return next((one.problem for one in judged if one is not None and one.problem), "")
        except IncomparableError as error:
            return str(error)


def read_probe(directory: Path) -> Probe:
    """What is in the file of the probe.

    Raises
    ------
    EngineError
        The file is missing or holds anything but plain arrays.
    """
    import numpy as np

    path = directory / PROBE
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
    return Probe(inputs, outputs, exact, known or None)


def _check_arrays(path: Path) -> None:
    """Make sure that arrays take the room that they say, and no more than the file: nothing in it unfolds.

    Raises
    ------
    ValueError
        One does not, or is none.
    """
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


def packages(compiler: Compiler[Any], target: Target, scheme: str) -> dict[str, str]:
    """The distributions that loading an engine of ``compiler`` needs, as they are installed here.

    Those that bring the adapter's runtime and the adapter itself, those that the adapter names in what it requires, and
    those that build the workload's module where the adapter has to run it alive.

    Parameters
    ----------
    scheme : str
        Of the workload, such as ``timm``.
    """
    modules = [*compiler.runtime_modules, type(compiler).__module__]
    roots = {module.partition(".")[0] for module in modules} - {__name__.partition(".")[0]}
    names = {found[0] for root in roots if (found := bringing(root))}
    names.update(compiler.requires(target))
    if compiler.needs_module:
        names.update(_OF_SCHEME.get(scheme, ()))
    versions = {}
    for name in sorted(names):
        try:
            # What follows a plus tells builds apart that an index serves under one version.
            versions[name] = version(name).partition("+")[0]
        except PackageNotFoundError:
            continue  # a requirement that is no distribution, such as the instruction set
    return versions
