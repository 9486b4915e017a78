"""Search for the first wrong operator, and for the smallest model that shows it.

A compiler fuses across nodes, and an output in the middle of a graph prevents that. So some nodes are tested as a model
of their own, whose inputs are the right values.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from mlflow_ngraph.errors import NGraphError
from mlflow_ngraph_bisect.judging import judge
from mlflow_ngraph_bisect.program import Arrays, InseparableError, Part, Program

Run = Callable[[Part], Arrays]
"""Compiles a part and runs it on its inputs. Raises `FailedError` where it cannot."""


class FailedError(NGraphError):
    """A part could not be compiled or run."""


@dataclass(frozen=True)
class WrongPart:
    """A part with a wrong output."""

    part: Part
    outputs: Arrays
    """The engine's."""
    exact: Arrays
    wrong: dict[str, str] = field(default_factory=dict)
    """How, in words, by output in the order in which the program computes them."""
    inner: WrongPart | None = None
    """The first of its values that is wrong when it is no output, where that is not the first output itself."""

    @property
    def first(self) -> str:
        return next(iter(self.wrong))

    @property
    def culprit(self) -> str:
        """First wrong value."""
        return (self.inner or self).first

    @property
    def how(self) -> str:
        """Describe the error of that value."""
        return (self.inner or self).wrong[self.culprit]


class Search:
    """Searches parts of a program.

    It stops at ``until`` (`time.monotonic`) with its findings so far, and reports progress to ``tell``. Values of one
    model may be its outputs up to ``largest`` bytes in all.
    """

    def __init__(
        self,
        program: Program,
        run: Run,
        *,
        precision: str = "fp32",
        until: float = float("inf"),
        tell: Callable[[str], None] = lambda text: None,
        largest: int = 1 << 29,
    ) -> None:
        self._program = program
        self._run = run
        self._precision = precision
        self._until = until
        self._tell = tell
        self._largest = largest
        self._producers = program.producers()
        self._tried: dict[tuple[tuple[int, ...], tuple[str, ...], bool], WrongPart | None] = {}
        self.failed = ""
        """Reason of the last failure to compile or run a part."""

    @property
    def tries(self) -> int:
        return len(self._tried)

    @property
    def out_of_time(self) -> bool:
        """True if the search stopped early."""
        return time.monotonic() >= self._until

    def whole(self) -> WrongPart | None:
        """Test the whole program. Raises `FailedError` if it cannot be run."""
        outputs = [name for name in self._program.outputs if name in self._producers]
        found = self._tested(self._program.ancestors(outputs, range(len(self._program.nodes))), outputs)
        if found is None and self.failed:
            raise FailedError(self.failed)
        return found

    def smallest(self, whole: WrongPart) -> WrongPart:
        """Shrink the whole program to the smallest part that is still wrong."""
        found = self._near_first_visible(whole) or self._halved(self._ending_at_first(whole))
        smallest = self._without_needless(found)
        return replace(smallest, inner=self._inner(smallest))

    def _near_first_visible(self, whole: WrongPart) -> WrongPart | None:
        """Make every value an output, and search near the first wrong one. None where none is wrong."""
        nodes = whole.part.nodes
        within = set(nodes)
        values = [name for name in self._program.visible() if self._producers.get(name) in within]
        seen = self._tested(nodes, values)
        if seen is None:
            return None
        self._tell(f"{self._program.nodes[self._producers[seen.first]].operator} is wrong first: taking it out")
        return self._grown(seen.first, nodes)

    def _grown(self, output: str, within: Sequence[int]) -> WrongPart | None:
        """Add preceding nodes to the node of an output until the part is wrong."""
        before = self._program.ancestors([output], within)
        count = 1
        while True:
            found = self._tested(before[-count:], [output])
            if found is not None or count >= len(before) or self.out_of_time:
                return found
            count *= 2

    def _ending_at_first(self, shown: WrongPart) -> WrongPart:
        """Ancestors of the first wrong output, if they are wrong by themselves."""
        nodes = self._program.ancestors([shown.first], shown.part.nodes)
        if len(nodes) == len(shown.part.nodes) and len(shown.part.outputs) == 1:
            return shown
        return self._tested(nodes, [shown.first]) or shown

    def _halved(self, shown: WrongPart) -> WrongPart:
        """Bisect to the earliest wrong half, as long as one half is wrong."""
        while len(shown.part.nodes) > 1 and not self.out_of_time:
            nodes = shown.part.nodes
            self._tell(f"{len(nodes)} nodes are wrong: halving them")
            first, last = nodes[: len(nodes) // 2], nodes[len(nodes) // 2 :]
            outputs = [name for name in shown.part.outputs if self._producers[name] in set(last)]
            found = self._tested(first, self._program.outputs_of(first)) or self._tested(last, outputs)
            if found is None:
                return shown
            shown = self._ending_at_first(found)
        return shown

    def _without_needless(self, shown: WrongPart) -> WrongPart:
        """Remove groups of nodes as long as the part stays wrong, then smaller groups, down to single nodes."""
        size = max(1, len(shown.part.nodes) // 2)
        while len(shown.part.nodes) > 1 and not self.out_of_time:
            smaller = self._one_group_less(shown, size)
            if smaller is not None:
                shown = smaller
                size = max(1, min(size, len(shown.part.nodes) // 2))
            elif size == 1:
                break
            else:
                size //= 2
        return self._ending_at_first(shown)

    def _one_group_less(self, shown: WrongPart, size: int) -> WrongPart | None:
        nodes = shown.part.nodes
        self._tell(f"{len(nodes)} nodes are wrong: leaving out {size}")
        for start in range(0, len(nodes), size):
            left_out, rest = set(nodes[start : start + size]), {*nodes[:start], *nodes[start + size :]}
            outputs = [name for name in shown.part.outputs if self._producers[name] in rest]
            # Where the last nodes are left out, one of the values comes out that they read.
            read = [[name] for name in self._read(left_out) if self._producers[name] in rest]
            asked = (
                self._tested(self._program.ancestors(names, rest), names) for names in ([outputs] if outputs else read)
            )
            found = next(filter(None, asked), None)
            if found is not None or self.out_of_time:
                return found
        return None

    def _read(self, nodes: Collection[int]) -> list[str]:
        """Values of other nodes that some nodes read, the last one first."""
        read = {name for place in nodes for name in self._program.nodes[place].inputs}
        return sorted(read & set(self._producers), key=self._producers.__getitem__, reverse=True)

    def _inner(self, shown: WrongPart) -> WrongPart | None:
        """Earliest wrong value within a wrong part.

        The last node may only prevent the fused value before it from being an output. So it is removed, and a node that
        negates takes its place.
        """
        found: WrongPart | None = None
        last: WrongPart | None = shown
        while last is not None:
            nodes = last.part.nodes
            values = [name for name in self._read([self._producers[last.first]]) if self._producers[name] in set(nodes)]
            asked = (self._tested(self._program.ancestors([name], nodes), [name], negated=True) for name in values)
            last = next(filter(None, asked), None)
            found = last or found
        return found

    def _tested(self, nodes: Collection[int], outputs: Sequence[str], *, negated: bool = False) -> WrongPart | None:
        """Compile and run a model of some nodes, once; None where it is right, or is no model."""
        key = tuple(nodes), tuple(outputs), negated
        if key not in self._tried:
            if not outputs or (self.out_of_time and self._tried):
                return None
            self.failed = ""
            self._tried[key] = self._try(nodes, outputs, negated=negated)
        return self._tried[key]

    def _try(self, nodes: Collection[int], outputs: Sequence[str], *, negated: bool) -> WrongPart | None:
        try:
            part = self._program.part(nodes, outputs, negated=negated)
            exact = self._program.exact(part)
            if sum(array.nbytes for array in exact) > self._largest:
                return None
            found = self._run(part)
            found = [-array for array in found] if negated else found
            wrong = judge(self._program, part, exact, found, self._precision)
        except (InseparableError, FailedError) as error:
            self.failed = str(error)
            return None
        ordered = dict(sorted(wrong.items(), key=lambda item: self._producers[item[0]]))
        return WrongPart(part, found, exact, ordered) if wrong else None
