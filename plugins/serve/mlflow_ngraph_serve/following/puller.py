"""Process of a follower that looks up an alias, pulls and verifies its engine, and tags versions.

It is apart from the servers: an unreachable tracking server, a long download or a failing client holds up nothing there. An
engine that it reports is complete and verified on this machine.
"""

from __future__ import annotations

import random
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlflow_ngraph.errors import EngineError, NGraphError, TrackingError, TransferError, UnreachableError
from mlflow_ngraph.processes import parent_death
from mlflow_ngraph_serve.following.channel import Channel, Message
from mlflow_ngraph_serve.following.followed import Champion, FollowedAlias
from mlflow_ngraph_serve.following.follower_state import FollowerState

if TYPE_CHECKING:
    from mlflow_ngraph.release.pulling import Pulled

LONGEST_S = 60.0
"""Between two attempts to reach a server that is away, unless it is asked less often anyway."""
_JITTER = 0.1
"""Devices that were started together shall not ask together."""


class Puller:
    """Looks again and again.

    Parameters
    ----------
    order : Message
        ``name``, ``alias``, ``tracking_uri``, ``trust``, ``run``, ``home``, ``directory`` (of the follower), ``device``, ``every_s``, and ``settled``: the version that needs nothing, if the alias points at it.
    say : Callable[..., None]
        Takes messages for the follower.
    """

    def __init__(self, order: Message, say: Callable[..., None]) -> None:
        self._order = order
        self._say = say
        self._alias = FollowedAlias(order["name"], order["alias"], order["tracking_uri"])
        self._settled = Champion(**order["settled"]) if order["settled"] else None
        self._damaged: Champion | None = None
        self._nobody = False
        self._marks: dict[str, str | None] = {}
        self._pause_s = float(order["every_s"])
        self._trouble, self._away = "", False
        self._may_mark = True

    def do(self, message: Message) -> None:
        """Execute a command of the follower."""
        if message["do"] == "mark":
            self._marks[message["version"]] = message["text"]
        else:
            self._damaged = Champion(**message["champion"])

    def look(self) -> float:
        """Look up the alias once, and pull a new version; returns the seconds until the next time."""
        every_s = float(self._order["every_s"])
        try:
            champion = self._alias.look()
            self._tell_marks()
            if self._damaged is not None:
                self._mend(self._damaged)
            if champion is not None and champion != self._settled:
                self._bring(champion)
            elif champion is None and not self._nobody:
                self._say(line="no version has this alias: waiting for one")
            self._nobody = champion is None
            if self._away:
                self._say(line="the tracking server answers again")
            self._trouble, self._away, self._pause_s = "", False, every_s
        except NGraphError as error:
            if str(error) != self._trouble:
                self._say(line=f"{error}; trying again from time to time")
            self._trouble, self._away = str(error), isinstance(error, UnreachableError)
            # Who does not answer is asked less and less often.
            self._pause_s = min(max(every_s, LONGEST_S), 2 * self._pause_s)
        return self._pause_s * random.uniform(1 - _JITTER, 1 + _JITTER)

    def _bring(self, champion: Champion) -> None:
        self._say(coming=asdict(champion))
        try:
            pulled = self._pulled(champion)
        except TransferError:
            raise
        except EngineError as error:
            self._say(refused=asdict(champion), reason=str(error))
        else:
            self._say(brought={**asdict(champion), "digest": pulled.package.digest, "directory": str(pulled.directory)})
        self._settled = champion

    def _mend(self, champion: Champion) -> None:
        """Bring a version again that was found damaged where it lies, wherever the alias points by now."""
        try:
            self._pulled(champion)
        except TransferError:
            raise
        except EngineError as error:
            self._say(line=f"version {champion.version} cannot be brought again: {error}")
        else:
            self._say(mended=champion.version)
        self._damaged = None

    def _pulled(self, champion: Champion) -> Pulled:
        from mlflow_ngraph.release.pulling import pull_engine

        order, place = self._order, FollowerState(Path(self._order["directory"])).place(champion)
        for other in place.parent.glob(".*.pull"):
            if other.name != f".{place.name}.pull":
                shutil.rmtree(other, ignore_errors=True)
        source = f"models:/{order['name']}/{champion.version}"
        how = {name: order[name] for name in ("tracking_uri", "trust", "run", "home")}
        return pull_engine(source, place, **how, force=True)

    def _tell_marks(self) -> None:
        """Write tags. A server that forbids it is reported once, and is no error."""
        while self._marks:
            version, text = next(iter(self._marks.items()))
            try:
                self._alias.mark(version, self._order["device"], text)
            except UnreachableError:
                raise
            except TrackingError as error:
                if self._may_mark:
                    self._say(line=f"versions get no tags: {error}")
                self._may_mark = False
            del self._marks[version]


def main() -> None:
    """Look until the follower has ended. The arguments are the channel's descriptor and the follower's process id."""
    descriptor, follower = map(int, sys.argv[1:])
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    parent_death.send_to_self(signal.SIGTERM, follower)
    channel = Channel.of_descriptor(descriptor)
    puller: Puller | None = None
    while not channel.ended:
        for message in channel.wait(None if puller is None else puller.look()):
            if puller is None:
                # Not on the command line: others see that.
                puller = Puller(message, channel.send)
            else:
                puller.do(message)


def _end(*_: Any) -> None:
    sys.exit(0)
