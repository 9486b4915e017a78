"""Crowd: limits connections and held bytes of a server, gives turns to connections, returns freed memory."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any, Protocol

from mlflow_ngraph import process_memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlflow_ngraph_serve.refusal import Reason

MOST = 1024
"""Connections at the same time. Beyond them the one goes on which nothing has moved for longest."""
SPARE = 64
"""Connections beyond `MOST` where all others are being answered; no inference is computed for them."""
ROOM = 48 << 20
"""Bytes that may wait for clients, bodies half sent and answers not taken, or four of the largest bodies."""
TURN_S = 0.005
"""Longest pause between requests of clients that are new or pipeline, while others are answered."""
PEAK = 16 << 20
"""Bytes that are held at once after which freed memory is returned to the system."""
QUIET_S = 5.0
"""Seconds after a peak of memory until then."""


class Member(Protocol):
    """A connection as a `Crowd` knows it."""

    transport: Any
    cycle: Any

    @property
    def held(self) -> int: ...
    @property
    def stalled(self) -> bool: ...
    def give_up(self, reason: Reason = "crowded") -> None: ...
    def go_on(self) -> None: ...


class Crowd:
    """Shared by all connections of a server: limits, bytes that are held, and who goes first.

    Parameters
    ----------
    patience_s : float
        Time for a client to take an answer.
    largest_body : int
        Bytes.
    refused : Callable[[Reason], None]
        Counts a refusal.

    Attributes
    ----------
    connections: those that are open, first those on which nothing has moved for longest.
    ending: the server takes no more connections.
    computed: bytes of questions that have come whole.
    first, others: connections that wait for their turn, with their first request, or because they pipeline.
    under_way: connections of prompt clients whose questions have come whole and are being answered.
    """

    def __init__(self, patience_s: float, largest_body: int, refused: Callable[[Reason], None]) -> None:
        self.patience_s, self.refused = patience_s, refused
        self.connections: dict[Member, None] = {}
        self.ending = self._peaked = False
        self._room = max(ROOM, 4 * largest_body)
        self.computed = self._waiting = 0
        self.under_way: set[Member] = set()
        self.first: dict[Member, None] = {}
        self.others: dict[Member, None] = {}
        self._leaving: dict[Member, None] = {}
        self._turn: asyncio.Handle | None = None
        self._turn_taken_at = 0.0
        self._tidying: asyncio.TimerHandle | None = None

    @property
    def held(self) -> int:
        """Bytes of requests and answers."""
        return self._waiting + self.computed

    def moved(self, connection: Member) -> None:
        """Something has moved: a question or an answer has begun, or an answer has left."""
        self.connections.pop(connection, None)
        self.connections[connection] = None

    def lost(self, connection: Member) -> None:
        """A connection has ended."""
        for some in (self.connections, self.first, self.others, self._leaving):
            some.pop(connection, None)
        self.answered(connection)

    def takes_turn(self, connection: Member) -> bool:
        """Have a connection go on when it is its turn: True if that is now.

        In each turn of the event loop one goes on, those with their first request before those that pipeline; and all wait
        while others are answered, but for `TURN_S` at most.
        """
        if self._turn is None and self._may_go_on():
            self._take_turn()
            return True
        (self.others if connection.cycle else self.first).setdefault(connection)
        return False

    def answered(self, connection: Member) -> None:
        """A prompt client has its answer."""
        self.under_way.discard(connection)
        # Handles of a later time say when that is, in every event loop.
        if self._turn is not None and hasattr(self._turn, "when") and not self.under_way:
            self._turn.cancel()
            self._turn = asyncio.get_running_loop().call_soon(self._next)

    def _take_turn(self) -> None:
        loop = asyncio.get_running_loop()
        self._turn, self._turn_taken_at = loop.call_soon(self._next), loop.time()

    def _may_go_on(self) -> bool:
        """True if somebody may go on now; else `_next` is called when somebody may."""
        loop, at = asyncio.get_running_loop(), self._turn_taken_at + TURN_S
        if not self.under_way or loop.time() >= at:
            return True
        self._turn = loop.call_at(at, self._next)
        return False

    def _next(self) -> None:
        self._turn = None
        while (line := self.first or self.others) and self._turn is None and self._may_go_on():
            connection = next(iter(line))
            del line[connection]
            if not connection.transport.is_closing():
                self._take_turn()
                connection.go_on()

    def computing(self, size: int) -> None:
        """Count bytes of questions that have come whole; negative ones when they are answered."""
        self.computed += size
        self._settle()

    def waiting(self, size: int) -> None:
        """Count bytes that wait for a client, and give up clients while there are too many."""
        self._waiting += size
        while self._waiting > self._room:
            next(connection for connection in self.connections if connection.held).give_up()
        self._settle()

    def make_room(self) -> bool:
        """Give up the connection on which nothing has moved for longest; False where all are being answered."""
        stalled = next((connection for connection in self.connections if connection.stalled), None)
        if stalled is None:
            return False
        stalled.give_up()
        # It counts no more, though it stays until its client has noticed: else a crowd that comes fast would fill the spare places.
        self.lost(stalled)
        self._leaving[stalled] = None
        if len(self._leaving) > SPARE:
            oldest = next(iter(self._leaving))
            del self._leaving[oldest]
            oldest.transport.abort()
        return True

    def grown(self) -> None:
        """Much JSON was read or written, which takes many times its own bytes."""
        self._await_quiet()
        self._settle()

    def _await_quiet(self) -> None:
        self._peaked = True
        if self._tidying is not None:
            self._tidying.cancel()
            self._tidying = None

    def _settle(self) -> None:
        if self.held > PEAK:
            self._await_quiet()
        elif self._peaked and self._tidying is None:
            self._tidying = asyncio.get_running_loop().call_later(QUIET_S, self._tidy)

    def _tidy(self) -> None:
        self._peaked, self._tidying = False, None
        gc.collect()  # a millisecond: what the engine has is frozen
        process_memory.release_freed()
