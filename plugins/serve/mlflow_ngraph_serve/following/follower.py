"""A device that follows an alias: it has what the alias points at, proven, and serves it if it is asked to."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from mlflow_ngraph.engines import trust as trusting
from mlflow_ngraph.engines.package import read_manifest
from mlflow_ngraph.errors import EngineError, UsageError
from mlflow_ngraph.processes.python_command import command
from mlflow_ngraph_serve.following.channel import Channel, Message
from mlflow_ngraph_serve.following.engine_server import Public
from mlflow_ngraph_serve.following.followed import Champion
from mlflow_ngraph_serve.following.handover import Handover
from mlflow_ngraph_serve.following.keeping import Keeping, KeptEngine
from mlflow_ngraph_serve.following.wanted import Wanted
from mlflow_ngraph_serve.server import listen

if TYPE_CHECKING:
    import socket

    from mlflow_ngraph.engines.trust import Rules
    from mlflow_ngraph_serve.settings import Settings

_SCOUT_AGAIN_S = 10.0
"""Delay before a scout that has died is started again."""
_ENDS_S = 10.0
"""Time for a scout to tidy up."""
_PORT_S = 5.0
"""Time for the servers of a killed follower to release its port."""


def follow(wanted: Wanted, say: Callable[[str], None]) -> None:
    """Follow an alias until an interrupt comes, and then end all that was started.

    Parameters
    ----------
    say : Callable[[str], None]
        Takes a line for people.

    Raises
    ------
    UsageError
        Somebody else follows it with this directory, or the port is taken.
    EngineError
        No engine of this server is trusted; or a server had to be killed in the end.
    KeyboardInterrupt
        It has ended.
    """
    keeping = Keeping(wanted.directory)
    rules = trusting.load(wanted.trust)
    trusting.admit(wanted.tracking_uri, rules)
    with ExitStack() as stack:
        problem = stack.enter_context(keeping.held())
        if problem:
            say(problem)
        objection = _objection(keeping.good, wanted.tracking_uri, rules)
        if objection:
            say(objection)
        if wanted.again:
            keeping.forgive()
        follower = Follower(wanted, keeping, say, usable=keeping.good is not None and not objection)
        if wanted.settings is not None:
            listening = stack.enter_context(_listening(wanted.settings, patient=keeping.good is not None))
            follower.serve(Public(wanted.served_name, wanted.settings, listening))
        follower.run()


class Follower:
    """Hears what the scout finds, and does what follows from it.

    Parameters
    ----------
    keeping : Keeping
        Held by this process.
    say : Callable[[str], None]
        Takes a line for people.
    usable : bool
        Whether there is a good engine that may be used until the scout has looked.
    """

    def __init__(self, wanted: Wanted, keeping: Keeping, say: Callable[[str], None], *, usable: bool) -> None:
        self._wanted, self._keeping, self._usable = wanted, keeping, usable
        self._say_all = say
        self._handover: Handover | None = None
        self._scout: Channel | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._scout_at = time.monotonic()
        self._seen: tuple[Champion | None, float] = (None, 0.0)
        self._marks: dict[str, str | None] = {}

    def serve(self, public: Public) -> None:
        """Serve the good engine, and new ones that prove themselves."""
        wanted = self._wanted
        self._handover = Handover(
            self._keeping,
            public,
            wanted.watch_s,
            self._say,
            self._mark,
            lambda engine: self._mend(engine.champion),
        )
        if self._usable:
            self._handover.begin()

    def run(self) -> None:
        """Follow until an interrupt comes.

        Raises
        ------
        EngineError
            A server had to be killed in the end.
        KeyboardInterrupt
            It has ended.
        """
        try:
            while True:
                self._step()
        finally:
            self._end()

    def _step(self) -> None:
        if self._scout is None and time.monotonic() >= self._scout_at:
            self._start_scout()
        channels = [self._scout] if self._scout is not None else []
        idle_s = max(0.0, self._scout_at - time.monotonic()) if self._scout is None else None
        if self._handover is not None:
            due_s = self._handover.step()
            idle_s = due_s if idle_s is None else min(idle_s, due_s)
            channels += self._handover.channels()
        select.select(channels, [], [], idle_s)
        if self._scout is not None:
            for message in self._scout.receive():
                self._heard(message)
            if self._scout.ended:
                self._close_scout()
                self._scout_at = time.monotonic() + _SCOUT_AGAIN_S
                self._say(
                    f"the process that looks at the alias has ended: another one starts in {_SCOUT_AGAIN_S:.0f} s"
                )

    def _heard(self, message: Message) -> None:
        if "line" in message:
            self._say(message["line"])
        elif "coming" in message:
            champion = Champion(**message["coming"])
            if champion != self._seen[0]:
                self._seen = (champion, time.monotonic())
            self._keeping.forgive()
        elif "mended" in message:
            self._say(f"version {message['mended']} is whole here")
            if self._handover is not None:
                self._handover.begin()
        elif "refused" in message:
            champion = Champion(**message["refused"])
            self._keeping.refuse(champion, message["reason"])
            self._mark(champion.version, f"refused: {message['reason']}")
            good = self._keeping.good
            stays = f"version {good.version} stays" if good is not None else "there is none to fall back on"
            self._say(f"refused: version {champion.version}: {message['reason']}; {stays}")
        else:
            self._brought(KeptEngine(**message["brought"]))

    def _brought(self, engine: KeptEngine) -> None:
        if self._handover is not None:
            self._handover.offer(engine, self._seen[1])
            return
        before = self._keeping.good
        self._keeping.keep(engine)
        self._mark(engine.version, "pulled")
        if before is not None and before.version != engine.version:
            self._mark(before.version, None)
        seconds = time.monotonic() - self._seen[1]
        self._say(f"moved: version {engine.version} is at {self._keeping.current}, after {seconds:.1f} s")

    def _start_scout(self) -> None:
        wanted, kept = self._wanted, self._keeping
        last = kept.refused or kept.good
        self._scout, other = Channel.pair()
        with other:
            self._process = subprocess.Popen(
                command("mlflow_ngraph_serve.following.scout", str(other.fileno()), str(os.getpid())),
                pass_fds=(other.fileno(),),
                stdin=subprocess.DEVNULL,
                # Standard output is for lines of the follower.
                stdout=2,
                start_new_session=True,
            )
        self._scout.send(
            name=wanted.name,
            alias=wanted.alias,
            tracking_uri=wanted.tracking_uri,
            trust=wanted.trust,
            directory=str(wanted.directory),
            device=wanted.device,
            every_s=wanted.every_s,
            settled=None if last is None else asdict(last.champion),
        )
        if kept.refused is not None:
            self._marks.setdefault(kept.refused.version, f"refused: {kept.refused.reason}")
        for version, text in self._marks.items():
            self._mark(version, text)
        if kept.good is not None and not self._usable:
            self._mend(kept.good.champion)

    def _close_scout(self) -> None:
        if self._scout is None or self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_ENDS_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._scout.close()
        self._scout = None

    def _mark(self, version: str, text: str | None) -> None:
        self._marks[version] = text
        if self._scout is not None:
            self._scout.send(do="mark", version=version, text=text)

    def _mend(self, champion: Champion) -> None:
        if self._scout is not None:
            self._scout.send(do="mend", champion=asdict(champion))

    def _say(self, line: str) -> None:
        self._say_all(f"{self._wanted.name}@{self._wanted.alias}: {line}")

    def _end(self) -> None:
        try:
            self._close_scout()
        finally:
            tidy = self._handover is None or self._handover.end()
        if not tidy:
            raise EngineError("a server did not come to an end; requests were left without an answer")


@contextmanager
def _listening(settings: Settings, *, patient: bool) -> Iterator[socket.socket]:
    """The socket that clients know, which no server of this follower can lose.

    Parameters
    ----------
    patient : bool
        Whether servers of a follower that was killed may still be leaving.
    """
    until = time.monotonic() + (_PORT_S if patient else 0.0)
    while True:
        try:
            listening = listen(settings.host, settings.port)
            break
        except UsageError:
            if time.monotonic() >= until:
                raise
            time.sleep(0.1)
    with listening:
        yield listening


def _objection(good: KeptEngine | None, tracking_uri: str, rules: Rules) -> str:
    """Objection to the engine of an earlier start; empty without one, or without an engine.

    Somebody may have changed their mind about it: it is believed as one that comes from its server now.
    """
    if good is None:
        return ""
    try:
        trusting.require_package(read_manifest(Path(good.directory), good.digest), tracking_uri, rules)
    except EngineError as error:
        return f"version {good.version} is not used as it is here: {error}"
    return ""
