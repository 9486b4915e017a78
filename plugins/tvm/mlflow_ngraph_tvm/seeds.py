"""Initial tilings of a search, whose innermost tile fits its sums into the vector registers.

TVM draws tilings at random, and few tilings of a convolution keep the vector units busy: a search of a few dozen trials
may never find one. The best size of the innermost tile is known: as many vectors of output channels by as many
positions as there are registers for sums. All other decisions stay random, and the search continues from the best.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod
from random import Random
from typing import Any

_SPATIAL, _REDUCTION = 4, 2
"""Levels into which TVM's structure SSRSRS for processors splits a loop over outputs, and one over summands."""
_SPARE = 4
"""Registers for what is multiplied."""
_MAX_VECTORS = 4
_MAX_SUMMANDS = 32
_MAX_MIDDLE = 8
_ATTEMPTS = 8
"""Tries for each seed that is wanted: not every choice gives a valid schedule."""


@dataclass(frozen=True)
class Processor:
    """Processor properties that a tiling depends on."""

    lanes: int
    """Floats in a vector register."""
    registers: int
    cores: int


def divisors(number: int, limit: int) -> list[int]:
    """Divisors up to a limit, ascending."""
    return [divisor for divisor in range(1, min(number, limit) + 1) if number % divisor == 0]


def tile_outputs(extents: Sequence[int], processor: Processor, random: Random) -> list[tuple[int, ...]]:
    """Four factors for each loop over outputs; the last loop is the vectorised one."""
    lanes = processor.lanes
    sizes = divisors(extents[-1], _MAX_VECTORS * lanes)
    whole = [size for size in sizes if size % lanes == 0]
    vector = random.choice(whole or sizes[-2:])
    positions = max(1, (processor.registers - _SPARE) // ceil(vector / lanes))
    inner = [vector]
    for extent in reversed(extents[:-1]):
        fitting = divisors(extent, positions)
        size = fitting[-1] if random.random() < 0.6 else random.choice(fitting)
        inner.append(size)
        positions = max(1, positions // size)
    factors = []
    for extent, size in zip(extents, reversed(inner), strict=True):
        rest = extent // size
        third = random.choice(divisors(rest, _MAX_MIDDLE))
        second = random.choice(divisors(rest // third, _MAX_MIDDLE))
        factors.append([rest // third // second, second, third, size])
    _make_parallel(factors, processor.cores)
    return [tuple(loop) for loop in factors]


def _make_parallel(factors: list[list[int]], cores: int) -> None:
    """Move factors outwards until every core has work."""
    for level in (1, 2):
        for loop in sorted(factors, key=lambda loop: -loop[level]):
            if prod(outer[0] for outer in factors) >= cores:
                return
            loop[0], loop[level] = loop[0] * loop[level], 1


def tile_summands(extents: Sequence[int], random: Random) -> list[tuple[int, ...]]:
    """Two factors for each loop over summands."""
    inner = [random.choice(divisors(extent, _MAX_SUMMANDS)) for extent in extents]
    return [(extent // size, size) for extent, size in zip(extents, inner, strict=True)]


def decide(samples: Sequence[tuple[str, Any]], processor: Processor, random: Random) -> dict[int, Any]:
    """Decisions by position for ``samples`` (kind, present decision) of a design space; missing ones stay random."""
    decisions: dict[int, Any] = {}
    outputs: list[int] = []
    summands: list[int] = []

    def close() -> None:
        if outputs:
            tiles = tile_outputs([prod(samples[at][1]) for at in outputs], processor, random)
            tiles += tile_summands([prod(samples[at][1]) for at in summands], random)
            decisions.update(zip([*outputs, *summands], tiles, strict=True))
        outputs.clear()
        summands.clear()

    for at, (kind, decision) in enumerate(samples):
        if kind == "SamplePerfectTile" and len(decision) == _SPATIAL:
            if summands:
                close()
            outputs.append(at)
        elif kind == "SamplePerfectTile" and len(decision) == _REDUCTION and outputs:
            summands.append(at)
        else:
            close()
    close()
    return decisions


class Seeder:
    """Draws seeds from the design spaces of one task; spaces without tiles give none.

    ``postprocs`` are TVM's rewriters of a drawn schedule; a schedule that one refuses is invalid.
    """

    def __init__(
        self, module: Any, spaces: Sequence[Any], postprocs: Sequence[Any], processor: Processor, random: Random
    ) -> None:
        self._module = module
        self._spaces = [space for space in spaces if decide(_samples(space.trace), processor, random)]
        self._postprocs = postprocs
        self._processor = processor
        self._random = random

    def draw(self, count: int) -> list[Any]:
        schedules: list[Any] = []
        if self._spaces:
            for _ in range(_ATTEMPTS * count):
                if len(schedules) == count:
                    break
                schedule = self._schedule(self._random.choice(self._spaces).trace)
                if schedule is not None:
                    schedules.append(schedule)
        return schedules

    def _schedule(self, trace: Any) -> Any | None:
        from tvm.s_tir import Schedule

        sampled = [instruction for instruction in trace.insts if instruction in trace.decisions]
        decided = decide(_samples(trace), self._processor, self._random)
        decisions = {sampled[at]: decision for at, decision in decided.items()}
        for at, instruction in enumerate(sampled):
            # How far loops are unrolled: a tile lies in registers only if its loops are.
            if instruction.kind.name == "SampleCategorical" and at not in decided:
                decisions[instruction] = len(instruction.attrs[0]) - 1 - self._random.randrange(2)
        schedule = Schedule(self._module, seed=self._random.randrange(1, 2**31 - 1), error_render_level="none")
        try:
            type(trace)(trace.insts, decisions).apply_to_schedule(schedule, remove_postproc=True)
            schedule.enter_postproc()
            return schedule if all(postproc.apply(schedule) for postproc in self._postprocs) else None
        except (RuntimeError, ValueError):
            # What TVM raises, under several names, for decisions that do not go together.
            return None


def _samples(trace: Any) -> list[tuple[str, Any]]:
    return [
        (instruction.kind.name, trace.decisions[instruction])
        for instruction in trace.insts
        if instruction in trace.decisions
    ]
