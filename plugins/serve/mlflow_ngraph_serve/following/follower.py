"""Deployment agent of an alias: runs the puller, keeps or refuses its engines, and has them served if asked."""

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

from mlflow_ngraph.engines import compatibility
from mlflow_ngraph.engines import trust as trusting
from mlflow_ngraph.engines.package import read_manifest
from mlflow_ngraph.errors import EngineError, UsageError
from mlflow_ngraph.processes.python_command import command
from mlflow_ngraph.release import consent
from mlflow_ngraph_serve.following.channel import Channel, Message
from mlflow_ngraph_serve.following.engine_server import Public
from mlflow_ngraph_serve.following.followed import Champion
from mlflow_ngraph_serve.following.follower_state import FollowerState, KeptEngine
from mlflow_ngraph_serve.following.handover import Handover
from mlflow_ngraph_serve.following.options import FollowerOptions
from mlflow_ngraph_serve.listening import listen

if TYPE_CHECKING:
    import socket

    from mlflow_ngraph.engines.trust import Rules
    from mlflow_ngraph_serve.settings import Settings

_PULLER_AGAIN_S = 10.0
"""Delay before a puller that has died is started again."""
_ENDS_S = 10.0
"""Time for a puller to tidy up."""
_PORT_S = 5.0
"""Time for the servers of a killed follower to release its port."""


def follow(options: FollowerOptions, say: Callable[[str], None]) -> None:
    """Follow an alias until an interrupt comes, and then end all that was started.

    Parameters
    ----------
    say : Callable[[str], None]
        Takes a line for people.

    Raises
    ------
    UsageError
        Another process follows it with this directory, or the port is taken.
    EngineError
        No engine of this server is trusted; or a server had to be killed in the end.
    KeyboardInterrupt
        It has ended.
    """
    state = FollowerState(options.directory)
    rules = trusting.load(options.trust, options.home)
    trusting.require_source(options.tracking_uri, rules)
    with ExitStack() as stack:
        problem = stack.enter_context(state.held())
        if problem:
            say(problem)
        objection = _objection(state.good, options, rules)
        if objection:
            say(objection)
        if options.again:
            state.forgive()
        follower = Follower(options, state, say, usable=state.good is not None and not objection)
        if options.settings is not None:
            listening = stack.enter_context(_listening(options.settings, patient=state.good is not None))
            follower.serve(Public(options.served_name, options.settings, listening))
        follower.run()


class Follower:
    """Reacts to the messages of the puller.

    Parameters
    ----------
    say : Callable[[str], None]
        Takes a line for people.
    usable : bool
        True where a good engine may be used until the puller has looked.
    """

    def __init__(
        self, options: FollowerOptions, state: FollowerState, say: Callable[[str], None], *, usable: bool
    ) -> None:
        self._options, self._state, self._usable = options, state, usable
        self._say_all = say
        self._handover: Handover | None = None
        self._puller: Channel | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._puller_at = time.monotonic()
        self._seen: tuple[Champion | None, float] = (None, 0.0)
        self._marks: dict[str, str | None] = {}

    def serve(self, public: Public) -> None:
        """Serve the good engine, and new ones that prove themselves."""
        options = self._options
        self._handover = Handover(
            self._state,
            public,
            options.watch_s,
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
        if self._puller is None and time.monotonic() >= self._puller_at:
            self._start_puller()
        channels = [self._puller] if self._puller is not None else []
        idle_s = max(0.0, self._puller_at - time.monotonic()) if self._puller is None else None
        if self._handover is not None:
            due_s = self._handover.step()
            idle_s = due_s if idle_s is None else min(idle_s, due_s)
            channels += self._handover.channels()
        select.select(channels, [], [], idle_s)
        if self._puller is not None:
            for message in self._puller.receive():
                self._heard(message)
            if self._puller.ended:
                self._close_puller()
                self._puller_at = time.monotonic() + _PULLER_AGAIN_S
                self._say(
                    f"the process that looks at the alias has ended: another one starts in {_PULLER_AGAIN_S:.0f} s"
                )

    def _heard(self, message: Message) -> None:
        if "line" in message:
            self._say(message["line"])
        elif "coming" in message:
            champion = Champion(**message["coming"])
            if champion != self._seen[0]:
                self._seen = (champion, time.monotonic())
            self._state.forgive()
        elif "mended" in message:
            self._say(f"version {message['mended']} is whole here")
            if self._handover is not None:
                self._handover.begin()
        elif "refused" in message:
            self._refuse(Champion(**message["refused"]), message["reason"])
        else:
            self._brought(KeptEngine(**message["brought"]))

    def _refuse(self, champion: Champion, reason: str) -> None:
        self._state.refuse(champion, reason)
        self._mark(champion.version, f"refused: {reason}")
        good = self._state.good
        stays = f"version {good.version} stays" if good is not None else "there is none to fall back on"
        self._say(f"refused: version {champion.version}: {reason}; {stays}")

    def _brought(self, engine: KeptEngine) -> None:
        change = "" if self._options.other_interface else _change(self._state.good, engine)
        if change:
            self._refuse(
                engine.champion, f"clients know {change}; --again --allow-other-interface takes it all the same"
            )
            return
        if self._handover is not None:
            self._handover.offer(engine, self._seen[1])
            return
        before = self._state.good
        self._state.keep(engine)
        self._mark(engine.version, "pulled")
        if before is not None and before.version != engine.version:
            self._mark(before.version, None)
        seconds = time.monotonic() - self._seen[1]
        self._say(f"moved: version {engine.version} is at {self._state.current}, after {seconds:.1f} s")

    def _start_puller(self) -> None:
        options, kept = self._options, self._state
        last = kept.refused or kept.good
        self._puller, other = Channel.pair()
        with other:
            self._process = subprocess.Popen(
                command("mlflow_ngraph_serve.following.puller", str(other.fileno()), str(os.getpid())),
                pass_fds=(other.fileno(),),
                stdin=subprocess.DEVNULL,
                # Standard output is for lines of the follower.
                stdout=2,
                start_new_session=True,
            )
        self._puller.send(
            name=options.name,
            alias=options.alias,
            tracking_uri=options.tracking_uri,
            trust=options.trust,
            run=options.run,
            home=None if options.home is None else str(options.home),
            directory=str(options.directory),
            device=options.device,
            every_s=options.every_s,
            settled=None if last is None else asdict(last.champion),
        )
        if kept.refused is not None:
            self._marks.setdefault(kept.refused.version, f"refused: {kept.refused.reason}")
        for version, text in self._marks.items():
            self._mark(version, text)
        if kept.good is not None and not self._usable:
            self._mend(kept.good.champion)

    def _close_puller(self) -> None:
        if self._puller is None or self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_ENDS_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._puller.close()
        self._puller = None

    def _mark(self, version: str, text: str | None) -> None:
        self._marks[version] = text
        if self._puller is not None:
            self._puller.send(do="mark", version=version, text=text)

    def _mend(self, champion: Champion) -> None:
        if self._puller is not None:
            self._puller.send(do="mend", champion=asdict(champion))

    def _say(self, line: str) -> None:
        self._say_all(f"{self._options.name}@{self._options.alias}: {line}")

    def _end(self) -> None:
        try:
            self._close_puller()
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
        Retry, because servers of a killed follower may still be ending.
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


def _change(good: KeptEngine | None, engine: KeptEngine) -> str:
    """Difference that clients of the good engine would meet; empty where there is none, or none can be told."""
    if good is None:
        return ""
    try:
        before, after = (read_manifest(Path(one.directory), one.digest).manifest.spec for one in (good, engine))
    except EngineError:
        # A damaged one is no engine that clients could get used to, and the other is looked at when it is loaded.
        return ""
    return compatibility.other_interface(after, before)


def _objection(good: KeptEngine | None, options: FollowerOptions, rules: Rules) -> str:
    """Objection to the engine of an earlier start; empty without one, or without an engine.

    Somebody may have changed their mind about it: it is believed as one that comes from its server now.
    """
    if good is None:
        return ""
    try:
        package = read_manifest(Path(good.directory), good.digest)
        consent.require_package(package, options.tracking_uri, rules, run=options.run, home=options.home)
    except EngineError as error:
        return f"version {good.version} is not used as it is here: {error}"
    return ""
