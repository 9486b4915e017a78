"""Blue/green switch: one engine takes over from another, and gives clients back if it fails.

An engine that comes is loaded in a process of its own beside the one that serves, tried there, and let to clients only then. The
old process stays for as long as the new one is watched, without taking connections: going back to it takes no longer than
saying so. Once that time is over it answers what it still has to, and ends. So there are two engines in memory for a while,
and never three: what comes meanwhile waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from mlflow_ngraph.errors import EngineError
from mlflow_ngraph_serve.following.engine_server import EngineServer, Public, end_all
from mlflow_ngraph_serve.following.watch import LATER_LOOK_S, Watch
from mlflow_ngraph_serve.listening import refuse_newcomers

if TYPE_CHECKING:
    from mlflow_ngraph_serve.following.channel import Channel
    from mlflow_ngraph_serve.following.follower_state import FollowerState, KeptEngine

LONGEST_PAUSE_S = 60.0
"""Between two attempts to serve the good engine again."""
_MOVE_S = 30.0
"""Timeout for a ready process to take connections."""
_LEAVES_S = 0.2


class Handover:
    """The engines of a follower that serves.

    Parameters
    ----------
    watch_s : float
        Trial period of a new engine, before the old one ends.
    say : Callable[[str], None]
        Takes a line for people.
    mark : Callable[[str, str | None], None]
        Called with a version, and its new state.
    mend : Callable[[KeptEngine], None]
        Has an engine checked where it lies, and brought again if it is damaged; then comes `begin`.
    """

    def __init__(
        self,
        state: FollowerState,
        public: Public,
        watch_s: float,
        say: Callable[[str], None],
        mark: Callable[[str, str | None], None],
        mend: Callable[[KeptEngine], None],
    ) -> None:
        self._state, self._public, self._watch_s = state, public, watch_s
        self._say, self._mark, self._mend = say, mark, mend
        self._serving: EngineServer | None = None
        self._standby: EngineServer | None = None
        self._coming: EngineServer | None = None
        self._leaving: dict[EngineServer, float] = {}
        self._offer: tuple[KeptEngine, float] | None = None
        self._watch: Watch | None = None
        self._again_at: float | None = None
        self._pause_s = self._deadline = self._asked_at = 0.0

    def begin(self) -> None:
        """Serve the good engine, if there is one."""
        self._again_at = time.monotonic()

    def offer(self, engine: KeptEngine, seen_at: float) -> None:
        """An engine is the champion now.

        Parameters
        ----------
        seen_at : float
            When that was seen, by the monotonic clock.
        """
        self._offer = (engine, seen_at)

    def channels(self) -> list[Channel]:
        """Channels of all processes."""
        return [server.channel for server in self._present() if not server.channel.ended]

    def step(self) -> float:
        """Do the steps that are due; returns the seconds until the next ones, unless a channel reports something before."""
        for server in self._present():
            server.hear()
        self._leaving = {server: until for server, until in self._leaving.items() if not server.gone(until)}
        if self._standby is not None and self._standby.failed:
            self._end_standby()
        self._look_after_serving()
        self._look_after_coming()
        self._start_again()
        self._consider_offer()
        return self._idle_s()

    def end(self) -> bool:
        """End all processes, the one that serves last, and say whether each did so by itself."""
        serving, self._serving = self._serving, None
        others = end_all([*self._present(), *self._leaving])
        # The socket is closed when nobody has it any more, and until then somebody has to take connections.
        refuse_newcomers(self._public.listening)
        self._public.listening.close()
        return end_all([serving] if serving is not None else []) and others

    def _present(self) -> Iterator[EngineServer]:
        return (server for server in (self._serving, self._standby, self._coming) if server is not None)

    def _dismiss(self, server: EngineServer) -> None:
        """End a process gracefully."""
        server.end()
        self._leaving[server] = time.monotonic() + server.patience_s

    @property
    def _on_trial(self) -> bool:
        return self._watch is not None and self._watch.on_trial

    def _end_standby(self) -> None:
        if self._standby is not None:
            self._dismiss(self._standby)
            self._standby = None

    def _look_after_serving(self) -> None:
        if self._serving is None or self._watch is None:
            return
        problem = self._watch.problem()
        if problem and self._on_trial:
            self._roll_back(problem)
        elif problem:
            self._lost(self._serving, problem)
        elif self._watch.passed:
            self._settle(self._serving)

    def _settle(self, serving: EngineServer) -> None:
        """Make a proven engine the good one."""
        self._watch = Watch(serving)
        self._state.keep(serving.engine)
        self._end_standby()
        self._say(f"version {serving.engine.version} has served {self._watch_s:g} s without a fault: it stays")

    def _roll_back(self, reason: str) -> None:
        """A new engine has failed while it was watched."""
        assert self._serving is not None
        failed, seconds = self._serving, time.monotonic() - self._serving.opened_at
        # First of all: clients wait.
        self._go_back()
        why = f"after {seconds:.1f} s of serving {reason}"
        self._note_refusal(failed.engine, why)
        self._say(f"went back: {self._what_serves()}; version {failed.engine.version} is refused: {why}")

    def _go_back(self) -> None:
        """Let clients to the engine that served before, and end the one that serves."""
        assert self._serving is not None
        dismissed, self._serving, self._standby = self._serving, self._standby, None
        self._watch = None
        if self._serving is not None:
            self._serving.let_in()
            self._watch = Watch(self._serving)
            self._mark(self._serving.engine.version, "serving")
        else:
            self._again_at = time.monotonic()
        self._dismiss(dismissed)

    def _refuse(self, engine: KeptEngine, reason: str) -> None:
        self._note_refusal(engine, reason)
        self._say(f"refused: version {engine.version}: {reason}; {self._what_serves()}")

    def _note_refusal(self, engine: KeptEngine, reason: str) -> None:
        self._state.refuse(engine.champion, reason)
        self._mark(engine.version, f"refused: {reason}")

    def _what_serves(self) -> str:
        if self._serving is not None:
            return f"version {self._serving.engine.version} serves"
        good = self._state.good
        return "nothing is served" if good is None else f"version {good.version} is started again"

    def _lost(self, serving: EngineServer, reason: str) -> None:
        """The good engine does not serve any more: it is started again, at once and then less and less often."""
        self._serving = self._watch = None
        self._dismiss(serving)
        if time.monotonic() > serving.opened_at + LONGEST_PAUSE_S:
            self._pause_s = 0.0
        self._try_again(f"version {serving.engine.version} does not serve any more: {reason}")

    def _try_again(self, why: str) -> None:
        self._say(f"{why}; it is started again{f' in {self._pause_s:g} s' if self._pause_s else ''}")
        self._again_at = time.monotonic() + self._pause_s
        self._pause_s = min(LONGEST_PAUSE_S, max(1.0, 2 * self._pause_s))

    def _cannot_serve(self, good: KeptEngine, reason: str) -> None:
        """Handle a good engine that does not start."""
        if self._pause_s == 0.0:
            # It may be damaged where it lies.
            self._mend(good)
        self._try_again(f"version {good.version} cannot be served: {reason}")

    def _look_after_coming(self) -> None:
        coming = self._coming
        if coming is None:
            return
        if coming.failed:
            self._fail(coming, coming.failed)
        elif coming.open:
            self._take_over(coming)
        elif coming.ready and not self._deadline:
            self._let_in(coming)
        elif self._deadline and time.monotonic() > self._deadline:
            self._fail(coming, "it is ready and takes no connections")

    def _let_in(self, coming: EngineServer) -> None:
        """Have an engine that is ready answer clients, if it answers as it should."""
        try:
            problem = coming.difference()
        except EngineError as error:
            problem = str(error)
        if problem:
            self._fail(coming, problem)
            return
        self._deadline = time.monotonic() + _MOVE_S
        coming.let_in()

    def _take_over(self, coming: EngineServer) -> None:
        """An engine answers clients now: the one before stands aside."""
        before, self._serving, self._coming = self._serving, coming, None
        self._again_at = None
        version, seconds = coming.engine.version, time.monotonic() - self._asked_at
        self._mark(version, "serving")
        if coming.engine == self._state.good:
            self._watch = Watch(coming)
            self._say(f"version {version} serves at {self._public.url}, after {seconds:.1f} s")
            return
        self._watch = Watch(coming, self._watch_s)
        instead = ""
        if before is not None:
            before.stand_aside()
            self._standby = before
            self._mark(before.engine.version, None)
            instead = f" in place of version {before.engine.version}"
        self._say(f"moved: version {version} serves at {self._public.url}{instead}, after {seconds:.1f} s")

    def _fail(self, coming: EngineServer, reason: str) -> None:
        """An engine does not get as far as clients."""
        self._coming = None
        self._dismiss(coming)
        if coming.engine == self._state.good and self._serving is None:
            self._cannot_serve(coming.engine, reason)
        else:
            self._refuse(coming.engine, reason)

    def _consider_offer(self) -> None:
        """Carry out the last move of the alias, once possible."""
        if self._offer is None or (self._coming is not None and self._deadline):
            return
        engine, seen_at = self._offer
        if self._coming is not None and self._coming.engine not in (engine, self._state.good):
            self._dismiss(self._coming)  # the alias has moved on before it got anywhere
            self._coming = None
        if self._serving is not None and self._serving.engine == engine:
            self._say(f"version {engine.version} is the champion, and serves")
        elif self._serving is not None and self._standby is not None and self._standby.engine == engine:
            watched = self._serving.engine.version
            self._go_back()
            self._mark(watched, None)
            self._say(f"moved back: version {engine.version} serves again, in place of version {watched}")
        elif self._coming is None and not self._on_trial:
            self._start(engine, seen_at)
        elif self._coming is None or self._coming.engine != engine:
            return
        self._offer = None

    def _start_again(self) -> None:
        """Restart the good engine when it is due."""
        now = time.monotonic()
        if self._again_at is None or now < self._again_at or self._coming is not None or self._serving is not None:
            return
        self._again_at = None
        if self._state.good is not None:
            self._start(self._state.good, now)

    def _start(self, engine: KeptEngine, asked_at: float) -> None:
        self._deadline, self._asked_at = 0.0, asked_at
        try:
            self._coming = EngineServer(engine, self._public)
        except EngineError as error:
            if engine == self._state.good:
                self._cannot_serve(engine, str(error))
            else:
                self._refuse(engine, str(error))

    def _idle_s(self) -> float:
        now = time.monotonic()
        due = (
            now + LATER_LOOK_S,
            self._watch.due if self._watch is not None else None,
            self._again_at if self._serving is None and self._coming is None else None,
            self._deadline if self._coming is not None and self._deadline else None,
            now + _LEAVES_S if self._leaving else None,
        )
        return max(0.0, min(at for at in due if at is not None) - now)
