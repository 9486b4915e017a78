"""Verdicts on claims: conditions on figures, judged by intervals that hold together."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from evidence.figures import Figure
from mlflow_ngraph.estimates import ALPHA, WIDEST
from mlflow_ngraph.text import rounded


class Verdict(str, Enum):
    """Answer to a claim."""

    HOLDS = "holds"
    FAILS = "does not hold"
    UNDECIDED = "undecided"
    NEEDS_DEVICE = "needs a device"
    NOTHING = "nothing there"


@dataclass(frozen=True)
class Condition:
    """A range that figures have to lie in for a claim to hold; ``claims.yaml`` explains the fields."""

    what: str
    figures: Sequence[Figure]
    low: float = -math.inf
    high: float = math.inf
    of: Literal["each", "one", "most", "identity"] = "each"
    full: int = 0
    device: str = ""

    @property
    def rule(self) -> str:
        if self.of == "identity":
            return "equal to 1 by definition"
        if math.isinf(self.high):
            return f"above {rounded(self.low)}"
        return (
            f"below {rounded(self.high)}"
            if math.isinf(self.low)
            else f"from {rounded(self.low)} to {rounded(self.high)}"
        )


@dataclass(frozen=True)
class Judged:
    """A condition with its verdict."""

    condition: Condition
    verdict: Verdict
    inside: int
    outside: int
    missing: int
    level: float

    @property
    def brief(self) -> str:
        """The figures in a few words."""
        values = sorted(figure.value for figure in self.condition.figures)
        if len(values) == 1:
            return f"{self.condition.what}: {self._shown(self.condition.figures[0])}, needs {self.condition.rule}"
        ends = " to ".join(dict.fromkeys(rounded(value, 3) for value in (values[0], values[-1])))
        return f"{self.condition.what}: {ends}; {self.inside} of {len(values)} {self.condition.rule}"

    @property
    def detail(self) -> str:
        """Condition, counts, and the figure that is critical to it: the nearest to breaking it, or to meeting it for one."""
        condition = self.condition
        undecided = len(condition.figures) - self.inside - self.outside
        counts = {"yes": self.inside, "no": self.outside, "undecided": undecided, "not measured": self.missing}
        told = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
        smallest = (condition.low > -math.inf) != (condition.of == "one")
        critical = (min if smallest else max)(condition.figures, key=lambda figure: figure.value)
        rule = condition.rule if condition.of in ("each", "identity") else f"{condition.of} {condition.rule}"
        return f"{condition.what}, {rule}: {told}. {critical.where()}: {self._shown(critical)}"

    def _shown(self, figure: Figure) -> str:
        low, high = figure.ends(self.level)
        if math.isnan(low) or low == high:
            return rounded(figure.value)
        if 0 < low < high / WIDEST:
            return f"{rounded(figure.value)} (too few rounds to bound it)"
        return f"{rounded(figure.value)} [{rounded(low)}, {rounded(high)}]"


@dataclass(frozen=True)
class Answer:
    """Verdict on a claim by one source of figures, with the conditions that it has figures for."""

    verdict: Verdict
    judged: tuple[Judged, ...]

    @property
    def deciding(self) -> Judged | None:
        """The first condition with the verdict, or the first; None without any."""
        return next(
            (one for one in self.judged if one.verdict is self.verdict), self.judged[0] if self.judged else None
        )


def by_tables(conditions: Sequence[Condition]) -> Answer:
    """Judge by the paper's tables, which have no more than they have."""
    answer = _answer(conditions, complete=True)
    return answer if answer.judged else Answer(Verdict.NOTHING, ())


def by_measurements(conditions: Sequence[Condition], devices: Collection[str]) -> Answer:
    """Judge by measurements on machines that stand for these devices of the paper."""
    answer = _answer(conditions, complete=False)
    lacking = {one.device for one in conditions} - {"", *devices}
    return Answer(Verdict.NEEDS_DEVICE, answer.judged) if lacking and answer.verdict is Verdict.UNDECIDED else answer


def _answer(conditions: Sequence[Condition], *, complete: bool) -> Answer:
    """Intervals hold together: the figures of a claim share its error probability (Bonferroni); exact ones take no share."""
    tests = sum(bool(figure.part.error > 0) for condition in conditions for figure in condition.figures)
    level = 1 - ALPHA / max(tests, 1)
    known = tuple(_judge(condition, level, complete) for condition in conditions if condition.figures)
    verdicts = {one.verdict for one in known}
    if Verdict.FAILS in verdicts:
        return Answer(Verdict.FAILS, known)
    holds = verdicts == {Verdict.HOLDS} and len(known) == len(conditions)
    return Answer(Verdict.HOLDS if holds else Verdict.UNDECIDED, known)


def _judge(condition: Condition, level: float, complete: bool) -> Judged:
    ends = [figure.ends(level) for figure in condition.figures]
    inside = sum(low > condition.low and high < condition.high for low, high in ends)
    outside = sum(high < condition.low or low > condition.high for low, high in ends)
    machines = {figure.machine for figure in condition.figures}
    missing = 0 if complete else max(condition.full * len(machines) - len(ends), 0)
    count = len(ends) + missing
    holds, fails = {
        "each": (inside == count, outside > 0),
        "one": (inside > 0, outside == count),
        "most": (2 * inside > count, 2 * outside >= count),
        "identity": (False, outside > 0),
    }[condition.of]
    verdict = Verdict.FAILS if fails else Verdict.HOLDS if holds else Verdict.UNDECIDED
    return Judged(condition, verdict, inside, outside, missing, level)
