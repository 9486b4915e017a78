"""Recipe and key of an engine: the sha256 of all that enters its compilation, from model and flags to versions."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mlflow_ngraph.compilers.base import Compiler, FlagValue, Target
from mlflow_ngraph.entry_points import CONVERTER, module_of
from mlflow_ngraph.version import __version__
from mlflow_ngraph.workloads.materials import EXPORTERS

SCHEMA = 2
"""Goes into every key: engines of a package that keyed them in another way are never found."""

_HERE = Path(__file__).resolve().parent.parent
_OURS = (_HERE / "compilers", _HERE / "workloads")
"""The code that every compilation goes through."""


@dataclass(frozen=True)
class Recipe:
    """All inputs of a compilation."""

    model: str
    """Digest of what the model computes; see `mlflow_ngraph.workloads.content`."""
    seed: int
    """Seeds the example inputs, which a compiler may look at."""
    exporters: Mapping[str, str]
    """Versions of the packages that made the export that the compiler starts from."""
    batch_sizes: tuple[int, ...]
    compiler: str
    flags: Mapping[str, FlagValue]
    """Every flag as it was asked for, defaults included."""
    target: Mapping[str, Any]
    """Precision, mode, threads, accelerator, transfers."""
    requires: Mapping[str, str]
    """Requirements that the compiler states: versions, instruction set, GPU."""
    package: str
    """Version of this package."""
    code: str
    """Digest of the source code of the adapter and of what it stands on."""

    def key(self) -> str:
        """sha256 of the canonical form; the order of flags does not count."""
        content = {"schema": SCHEMA, **asdict(self), "batch_sizes": sorted(self.batch_sizes)}
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()


def recipe(compiler: Compiler[Any], target: Target, batch_sizes: Sequence[int], materials: Mapping[str, Any]) -> Recipe:
    """Recipe of a prepared workload (``materials.json``) on this machine now."""
    packages = {name for kind in compiler.formats for name in EXPORTERS[kind]}
    return Recipe(
        model=materials["digest"],
        seed=materials["seed"],
        exporters={name: version for name, version in materials["versions"].items() if name in packages},
        batch_sizes=tuple(batch_sizes),
        compiler=compiler.name,
        flags=compiler.flags.model_dump(mode="json"),
        target=_counted(compiler, target),
        requires=compiler.requires(target),
        package=__version__,
        code=_code_digest(type(compiler)),
    )


def _counted(compiler: Compiler[Any], target: Target) -> dict[str, Any]:
    """Fields of a target that affect an engine."""
    return target.content() if compiler.threaded else {**target.content(), "threads": None}


@cache
def _code_digest(kind: type[Compiler[Any]]) -> str:
    """sha256 of the Python files that compile: a version number alone would hide a change in a checkout."""
    digest = hashlib.sha256()
    converter = find_spec(module_of(CONVERTER))
    places = map(Path, converter.submodule_search_locations or ()) if converter is not None else ()
    for root in sorted({*_OURS, *places, _home(kind)}):
        for path in [root] if root.is_file() else sorted(root.rglob("*.py")):
            name = path.name if root.is_file() else path.relative_to(root.parent).as_posix()
            digest.update(f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def _home(kind: type[Compiler[Any]]) -> Path:
    file = Path(inspect.getfile(kind)).resolve()
    return file.parent if (file.parent / "__init__.py").is_file() else file
