"""Offer request rates to a cell, and search for the highest one within a latency bound."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import psutil

from mlflow_ngraph.execute.answers import ArrivalsAnswer
from mlflow_ngraph.execute.journal import Journal
from mlflow_ngraph.execute.record import Lane
from mlflow_ngraph.measure import open_loop_figures
from mlflow_ngraph.processes.child import Child
from mlflow_ngraph.study import Study
from mlflow_ngraph.study_settings import Arrivals
from mlflow_ngraph.text import rounded

Offer = Callable[[float, float, int, str], Mapping[str, Any]]
"""Offers a rate for some seconds, as a step with a purpose, and returns its `open_loop_figures.row`."""

PATIENCE = 2.0
"""Time limit of a rate in multiples of its schedule; later requests are dropped."""


@dataclass(frozen=True)
class ServedCell:
    """An engine that a child has loaded for a cell, and that requests are offered to."""

    study: Study
    settings: Arrivals
    journal: Journal
    child: Child
    lane: Lane
    batch: int
    session: int
    settle: Mapping[str, Any]
    """Untimed calls before the requests."""
    stopped_s: list[float] = field(default_factory=list)
    """How long the process stood still in attempts at all rates."""

    def offer(self, rate: float, window_s: float, step: int, purpose: str) -> Mapping[str, Any]:
        """Offer a rate, as an `Offer`. Raises `ChildFailure` without a result."""
        study, lane = self.study, self.lane
        asked: dict[str, Any] = {"rate": rate, "window_s": window_s, "process": self.settings.process}
        self.journal.tell("stage", lane=lane.id, stage=f"requests at {rounded(rate)}/s:", batch=self.batch)
        result: ArrivalsAnswer = self.child.request(
            "arrive",
            PATIENCE * window_s + study.limits.load_seconds,
            accounted=lambda result: float(result["wall_s"]),
            seed=[study.seed, step],
            limit_s=PATIENCE * window_s,
            **asked,
            **self.settle,
        )
        self.stopped_s.extend(result.get("stopped_s", ()))
        about = {"lane": lane.id, "batch": self.batch, "session": self.session, "step": step, "purpose": purpose}
        event = self.journal.append("arrivals", cell=lane.cell(self.batch), **about, **asked, **result)
        return open_loop_figures.row(event, psutil.cpu_count() or 1, study.stability.model_dump())


def offer_rates(settings: Arrivals, throughput: float, servers: int, offer: Offer) -> str:
    """Offer every rate of the study, then search for the highest one within the bound.

    ``throughput`` is that of the closed loop, in requests per second, and ``servers`` the number of requests served
    concurrently. Returns remarks, such as why the search ended early.
    """
    return _Offers(settings, throughput, servers, offer).run()


class _Offers:
    def __init__(self, settings: Arrivals, throughput: float, servers: int, offer: Offer) -> None:
        self._settings = settings
        self._throughput = throughput
        self._search = open_loop_figures.Search(throughput)
        self._offer = offer
        self._left_s = settings.max_seconds
        self._step = 0
        self._notes: list[str] = []

    def run(self) -> str:
        for rate in self._settings.rates_for(self._throughput):
            self._try(rate, "rate")
        if self._settings.max_p99_ms is not None:
            self._seek()
        return "; ".join(self._notes)

    def _seek(self) -> None:
        while (rate := self._search.next()) is not None:
            figures = self._try(rate, "search")
            if figures is not None and not figures["valid"]:
                # A single failure may be chance.
                figures = self._try(rate, "search")
            if figures is None:
                return
            if not figures["valid"]:
                self._notes.append(f"the search ended at {rounded(rate)}/s: {figures['reason']}")
                return

    def _try(self, rate: float, purpose: str) -> Mapping[str, Any] | None:
        seconds = self._settings.window_s(rate)
        if seconds > self._left_s:
            self._notes.append(
                f"{rounded(rate)}/s was not offered: it takes {seconds:.0f} s, and {self._left_s:.0f} s are left of max_seconds"
            )
            return None
        figures = self._offer(rate, seconds, self._step, purpose)
        self._step += 1
        self._left_s -= seconds
        if figures["valid"] and self._settings.max_p99_ms is not None:
            self._search.learn(rate, kept=open_loop_figures.kept(figures, self._settings.max_p99_ms))
        return figures
