"""Registry: lazily imported classes by name, built-in or from entry points; also loads the project's own plugins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from importlib.metadata import Distribution, EntryPoint, PackageNotFoundError, distribution, entry_points
from types import MappingProxyType
from typing import Any, Generic, TypeVar, cast

from mlflow_ngraph.errors import DependencyError, UnknownNameError
from mlflow_ngraph.version import __version__

T = TypeVar("T")

CONVERTER = "mlflow-ngraph-onnx"
"""The plugin that makes PyTorch modules of ONNX files."""
ENGINE_PLUGINS = (CONVERTER, "mlflow-ngraph-tvm")
"""Plugins that an engine may need where it runs."""


@dataclass(frozen=True)
class Entry:
    """Location of a class, and the package to install when its module cannot be imported."""

    target: str
    """``package.module:Class``."""
    hint: str = ""
    """The pip command that brings what the module imports."""


class Registry(Generic[T]):
    """Classes of one kind by name.

    ``kind`` is the word for messages, such as ``"compiler"``. The entry-point group ``group`` adds names of other
    packages, which cannot replace ``builtin`` ones.
    """

    def __init__(self, kind: str, group: str, builtin: Mapping[str, Entry]) -> None:
        self.kind = kind
        self.group = group
        self._builtin = dict(builtin)

    @cached_property
    def entries(self) -> Mapping[str, Entry]:
        """All entries, built in or from installed packages."""
        installed = {
            point.name: Entry(point.value, f"pip install --upgrade {point.dist.name}" if point.dist else "")
            for point in entry_points(group=self.group)
        }
        return MappingProxyType({**installed, **self._builtin})

    def names(self) -> list[str]:
        """All names: the built-in ones in their own order, then the others sorted."""
        others = sorted(set(self.entries) - set(self._builtin))
        return [*self._builtin, *others]

    def require(self, name: str) -> Entry:
        """Look up an entry without importing it. Raises `UnknownNameError` for an unregistered name."""
        # Looking through every installed package takes a tenth of a second, which built-in names need not pay.
        entry = self._builtin.get(name) or self.entries.get(name)
        if entry is None:
            raise UnknownNameError(self.kind, name, self.names())
        return entry

    def get(self, name: str) -> type[T]:
        """Import a class. Raises `UnknownNameError`, or `DependencyError` if its module needs a missing package."""
        entry = self.require(name)
        module, _, attribute = entry.target.partition(":")
        for plugin in ENGINE_PLUGINS:
            if module.startswith(f"{module_of(plugin)}."):
                _require_version(plugin, f"{self.kind} {name!r}")
        try:
            return cast("type[T]", getattr(import_module(module), attribute))
        except ImportError as error:
            if name in self._builtin and (error.name or "").partition(".")[0] == __package__:
                raise  # a fault of this package, which no installation mends
            hint = f"; install it with: {entry.hint}" if entry.hint else ""
            raise DependencyError(f"{self.kind} {name!r} needs {error.name or error}{hint}") from error
        except Exception as error:
            if name in self._builtin:
                raise  # a fault of this package
            # One broken package of a third party must not take the others along.
            raise DependencyError(
                f"{self.kind} {name!r} cannot be loaded from {entry.target}: {type(error).__name__}: {error}"
            ) from error


def module_of(distribution: str) -> str:
    """Name of the package that a distribution of this project installs."""
    return distribution.replace("-", "_")


def load_plugin(plugin: str, group: str, name: str, wanted: str) -> Any:
    """Import an entry point of one of this project's plugins.

    Raises `DependencyError` if the plugin is not installed in the version of the core; ``wanted`` describes the entry point
    in the message.
    """
    points: tuple[EntryPoint, ...] = ()
    if (installed := _require_version(plugin, wanted)) is not None:
        points = tuple(installed.entry_points.select(group=group, name=name))
    if not points:  # not installed, or before it had this entry point
        raise DependencyError(f"{wanted} is part of {plugin} {__version__}, which is not installed; {_install(plugin)}")
    return points[0].load()


def _require_version(plugin: str, wanted: str) -> Distribution | None:
    """The installed plugin; None without one. Raises `DependencyError` for that of another version."""
    try:
        installed = distribution(plugin)
    except PackageNotFoundError:
        return None
    if installed.version != __version__:
        raise DependencyError(
            f"{wanted} needs {plugin} {__version__}, and {installed.version} is installed; {_install(plugin)}"
        )
    return installed


def _install(plugin: str) -> str:
    return f"in a checkout of that version: pip install ./plugins/{plugin.rpartition('-')[2]}"
