"""A model as nodes that can be taken apart: what the search for the first wrong operator works on."""

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
    """Some nodes make no model by themselves: what goes into them, or comes out of them, is no array."""


@dataclass(frozen=True)
class Node:
    """An operator at its place. Values are known by their names."""

    name: str
    operator: str
    inputs: tuple[str, ...]
    """Also those that bodies of loops and branches read from outside."""
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Part:
    """Some nodes of a program as a model: what they need of the others is an input or a constant of it."""

    nodes: tuple[int, ...]
    """Places in the program, ascending."""
    outputs: tuple[str, ...]
    inputs: Mapping[str, NDArray[Any]] = field(compare=False)
    """What the model is run on: the values that the unoptimised program has there."""
    model: Any = field(compare=False)
    """In the form of the program that it is part of."""
    negated: bool = False
    """Whether the model gives each output through one more node, which negates it."""


class Program(ABC):
    """A model with one set of inputs. Its nodes are in an order in which they can be computed."""

    suffix: str
    """Of the files that `save` writes."""
    nodes: Sequence[Node]
    outputs: tuple[str, ...]

    @abstractmethod
    def part(self, nodes: Collection[int], outputs: Sequence[str], *, negated: bool = False) -> Part:
        """A model of some nodes.

        Parameters
        ----------
        negated : bool
            Give the outputs through nodes that negate them: an output keeps a compiler from fusing across it.

        Raises
        ------
        InseparableError
            They make none.
        """

    @abstractmethod
    def save(self, part: Part, path: Path) -> None:
        """Write the model of a part."""

    @abstractmethod
    def prepare(self, part: Part, directory: Path) -> int:
        """Write the materials that an adapter compiles a part from; returns the batch size that it is to be told.

        All sizes of a part are fixed.
        """

    @abstractmethod
    def exact(self, part: Part) -> list[NDArray[Any]]:
        """The outputs of a part computed in float64; what is negated in its model is not here."""

    @abstractmethod
    def rounded(self, part: Part) -> list[NDArray[Any]]:
        """The same computed in its own element types, node by node and without any optimisation."""

    @abstractmethod
    def disturbed(self, part: Part, seed: int) -> list[tuple[float, list[NDArray[Any]]]]:
        """The same in arithmetic that is worse than its own, and how many times as large its roundings are."""

    @abstractmethod
    def visible(self) -> list[str]:
        """The values that may be outputs of a part."""

    def doubt(self, part: Part, engine: Arrays, precision: str) -> str:
        """Why the truth about a small part may be none, and what was done about it; empty where nothing speaks against it.

        Whoever is told so searches again. The default knows one truth only.
        """
        return ""

    def producers(self) -> dict[str, int]:
        """The place of the node that each value comes from."""
        return {name: place for place, node in enumerate(self.nodes) for name in node.outputs if name}

    def ancestors(self, outputs: Iterable[str], within: Collection[int]) -> list[int]:
        """The nodes, of some, that outputs depend on."""
        producers, among = self.producers(), set(within)
        found: set[int] = set()
        open_ = [name for name in outputs if producers.get(name) in among]
        while open_:
            place = producers[open_.pop()]
            if place not in found:
                found.add(place)
                open_ += [name for name in self.nodes[place].inputs if producers.get(name) in among]
        return sorted(found)

    def leaving(self, nodes: Collection[int]) -> list[str]:
        """The values that other nodes, or whoever runs the program, have of some nodes."""
        among = set(nodes)
        read = {name for place, node in enumerate(self.nodes) if place not in among for name in node.inputs}
        read |= set(self.outputs)
        return [name for place in sorted(among) for name in self.nodes[place].outputs if name in read]
