"""Program: interface of a model that is cut into parts of its nodes, which it saves, prepares and computes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from mlflow_ngraph.errors import NGraphError

Arrays = Sequence[NDArray[Any]]


class InseparableError(NGraphError):
    """Some nodes make no model by themselves, because an input or output of theirs is no array."""


@dataclass(frozen=True)
class Node:
    """An operator at its place. Values have names."""

    name: str
    operator: str
    inputs: tuple[str, ...]
    """Also those that bodies of loops and branches read from outside."""
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Part:
    """Some nodes of a program as a model; values of other nodes are inputs or constants."""

    nodes: tuple[int, ...]
    """Places in the program, ascending."""
    outputs: tuple[str, ...]
    inputs: Mapping[str, NDArray[Any]] = field(compare=False)
    """Inputs of the model: the values in the unoptimised program."""
    model: Any = field(compare=False)
    """In the form of the program that it is part of."""
    negated: bool = False
    """True if the model gives each output through one more node, which negates it."""


class Program(ABC):
    """A model with one set of inputs. Its nodes are in topological order."""

    suffix: str
    """Name of the files of `save`."""
    nodes: Sequence[Node]
    outputs: tuple[str, ...]

    @abstractmethod
    def part(self, nodes: Collection[int], outputs: Sequence[str], *, negated: bool = False) -> Part:
        """Make a model of some nodes.

        With ``negated``, outputs pass through nodes that negate them: an output prevents fusion across it. Raises
        `InseparableError` if they make none.
        """

    @abstractmethod
    def save(self, part: Part, path: Path) -> None:
        """Write the model of a part."""

    @abstractmethod
    def prepare(self, part: Part, directory: Path) -> int:
        """Write the materials from which an adapter compiles a part, and return its batch size.

        All sizes of a part are fixed.
        """

    @abstractmethod
    def exact(self, part: Part) -> list[NDArray[Any]]:
        """Outputs of a part in float64, without the negations of its model."""

    @abstractmethod
    def rounded(self, part: Part) -> list[NDArray[Any]]:
        """Outputs in the part's own types, node by node and without optimisation."""

    @abstractmethod
    def disturbed(self, part: Part, seed: int) -> list[tuple[float, list[NDArray[Any]]]]:
        """Outputs in less exact arithmetic, and its rounding errors as multiples of the part's own."""

    @abstractmethod
    def visible(self) -> list[str]:
        """Values that can be outputs of a part."""

    def recheck(self, part: Part, engine: Arrays, precision: str) -> str:
        """Check the result in float64 of a small part, and describe the correction; empty where it is right.

        The caller then searches again. The default has one way to compute only.
        """
        return ""

    def producers(self) -> dict[str, int]:
        """Index of the node that computes each value."""
        return {name: place for place, node in enumerate(self.nodes) for name in node.outputs if name}

    def ancestors(self, outputs: Iterable[str], within: Collection[int]) -> list[int]:
        """Nodes, of some, that outputs depend on."""
        producers, among = self.producers(), set(within)
        found: set[int] = set()
        open_ = [name for name in outputs if producers.get(name) in among]
        while open_:
            place = producers[open_.pop()]
            if place not in found:
                found.add(place)
                open_ += [name for name in self.nodes[place].inputs if producers.get(name) in among]
        return sorted(found)

    def outputs_of(self, nodes: Collection[int]) -> list[str]:
        """Values of some nodes that other nodes or the caller read."""
        among = set(nodes)
        read = {name for place, node in enumerate(self.nodes) if place not in among for name in node.inputs}
        read |= set(self.outputs)
        return [name for place in sorted(among) for name in self.nodes[place].outputs if name in read]
