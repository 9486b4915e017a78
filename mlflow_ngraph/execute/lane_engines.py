"""The engines of one lane before anything is timed: found or compiled, verified, and kept for others."""

from __future__ import annotations

import hashlib
import math
import shutil
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mlflow_ngraph.compilers.base import Compiler, Target
from mlflow_ngraph.compilers.registry import create
from mlflow_ngraph.compilers.spec import EngineSpec
from mlflow_ngraph.engines import key
from mlflow_ngraph.engines.files import digest_files, irregular_entry
from mlflow_ngraph.engines.manifest import Compiled, Maker
from mlflow_ngraph.errors import UnsupportedError
from mlflow_ngraph.execute.answers import Built
from mlflow_ngraph.execute.cache import EngineCache
from mlflow_ngraph.execute.lane_process import LaneProcess
from mlflow_ngraph.execute.process_pool import Steps
from mlflow_ngraph.execute.record import EngineRecord, Lane
from mlflow_ngraph.execute.session import Session
from mlflow_ngraph.processes.child import Child, ChildFailure
from mlflow_ngraph.verdicts import Verdict

TRIAL_ROOM = 1.1
"""How many times ``limits.verify_seconds`` the trials of an engine may take: none is begun that would probably end later than
that, but of the first nobody knows."""


class _TrialTooLong(Exception):  # noqa: N818 - what was found, and no fault
    """The first trial of an engine did not end in time."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


def _seconds(answer: Built) -> float:
    return answer["seconds"]


class LaneEngines:
    """Makes the engines of one lane.

    What takes time are steps for a crew, which raise `ChildFailure` when they have no result.

    Parameters
    ----------
    cache : EngineCache | None
        Where engines are looked for and kept; None compiles them all.
    """

    def __init__(self, session: Session, lane: Lane, cache: EngineCache | None = None) -> None:
        self.lane = lane
        self.compiler: Compiler[Any] = create(lane.compiler, lane.flags)
        self.made: dict[int, EngineRecord] = {}
        """By batch size."""
        self.verified: dict[int, dict[str, Any]] = {}
        """What came of the verification, by batch size."""
        self.impure = ""
        """Why the model is no function of its inputs, so that no engine can be compared with it; empty where it is."""
        self._session = session
        self._cache = cache
        self._process = LaneProcess(session, lane, self.compiler)
        self._slowdown: float | None = None
        """How many times as long as the baseline a call of the last engine that was verified took."""

    @property
    def overhead_s(self) -> float:
        """Seconds in which processes did nothing that has a name of its own."""
        return self._process.overhead_s

    @property
    def target(self) -> dict[str, Any]:
        """The fields of the `Target`."""
        lane = self.lane
        return {
            "precision": lane.precision,
            "mode": lane.mode,
            "threads": lane.threads,
            "accelerator": self._session.plan.accelerator,
            "transfers": lane.transfers,
            "build_for": self._session.plan.study.build_for,
        }

    def key(self, batch_sizes: Sequence[int], materials: Mapping[str, Any]) -> str:
        """The key of the engine for ``batch_sizes``, compiled from these materials here and now."""
        return key.recipe(self.compiler, Target(**self.target), batch_sizes, materials).key()

    def groups(self, batch_sizes: Sequence[int]) -> list[tuple[int, ...]]:
        """Which of ``batch_sizes`` share an engine."""
        return self.compiler.engines(batch_sizes)

    def unsupported(self) -> str | None:
        """Why the compiler declares that it cannot serve this lane, or None."""
        kind, lane = self.compiler, self.lane
        for word, asked, offered in (
            ("precision", lane.precision, kind.precisions),
            ("mode", lane.mode, kind.modes),
            ("accelerator", self._session.plan.accelerator, kind.accelerators),
        ):
            if asked not in offered:
                return f"{kind.name} has no {word} {asked}; it has {', '.join(offered)}"
        if self._session.plan.study.build_for:
            try:
                kind.check(Target(**self.target))
            except UnsupportedError as error:
                return str(error)
        return None

    def loadable(self, batch: int) -> dict[str, Any]:
        """What a process has to know to load the engine for ``batch``, and to compare it with the baseline."""
        places = self._session.places
        return {
            "compiler": self.lane.compiler,
            "flags": dict(self.lane.flags),
            "directory": str(places.root / self.made[batch].directory),
            "materials": str(places.materials(self.lane.workload)),
            "batch": batch,
            "target": self.target,
        }

    def reuse(self, engine: EngineRecord) -> bool:
        """Take over an engine of an earlier session if its files are still what was built."""
        directory = self._session.places.root / engine.directory
        if not directory.is_dir() or irregular_entry(directory) or digest_files(directory) != dict(engine.files):
            return False
        self.made.update(dict.fromkeys(engine.batch_sizes, engine))
        return True

    def take(self, batch_sizes: Sequence[int], key: str) -> bool:
        """Take the engine for ``batch_sizes`` from the cache; False where it has to be compiled."""
        if self._cache is None:
            return False
        final = self._place(batch_sizes)
        requires = self.compiler.requires(Target(**self.target))
        stored = self._cache.take(self.lane, key, requires, final, shared=self.compiler.shared)
        if stored is None:
            return False
        self._keep(batch_sizes, stored.spec, stored.compiled, stored.engine_files(), stored.made_by)
        return True

    def build(self, batch_sizes: Sequence[int], key: str, beside: Callable[[], int]) -> Steps:
        """Compile and save the engine for ``batch_sizes`` in the lane's compiling process.

        Parameters
        ----------
        beside : Callable[[], int]
            Says at the end how many others at most prepared or compiled at the same time.
        """
        final = self._place(batch_sizes)
        partial = final.with_name(f"{final.name}.partial")
        for left_over in (final, partial):
            shutil.rmtree(left_over, ignore_errors=True)
        self._say(batch_sizes[0], "build")("compile")
        child = self._process.start("build")
        yield child
        child.finish()
        limits, places = self._session.plan.study.limits, self._session.places
        child.begin(
            "build",
            limits.compile_seconds + (limits.search_seconds if self.compiler.searches else 0.0),
            on_stage=self._say(batch_sizes[0], "build"),
            accounted=_seconds,
            compiler=self.lane.compiler,
            flags=dict(self.lane.flags),
            materials=str(places.materials(self.lane.workload)),
            directory=str(partial),
            work=str(places.work(self.lane.id, final.name)),
            batch_sizes=list(batch_sizes),
            target=self.target,
        )
        yield child
        result: Built = child.finish()
        built_beside = beside()
        yield from self._explain(partial, batch_sizes)
        files = digest_files(partial)
        partial.rename(final)
        compiled = Compiled(key=key, stages=result["stages"], built_beside=built_beside)
        self._keep(batch_sizes, EngineSpec.read(final), compiled, files)

    def _explain(self, directory: Path, batch_sizes: Sequence[int]) -> Steps:
        """Ask the compiler what it did. A compiler that cannot tell costs its explanation only, not the engine."""
        device = self._session.plan.study.build_for
        if device and not self.compiler.explains_elsewhere:
            reason = f"it was built for {device}, where its compiler can look at it"
            self._session.journal.append("engine_unexplained", lane=self.lane.id, reason=reason)
            return
        child = self._process.start("build")
        child.begin(
            "explain",
            self._session.plan.study.limits.load_seconds,
            on_stage=self._say(batch_sizes[0], "build"),
            accounted=lambda result: float(result["seconds"]),
            compiler=self.lane.compiler,
            flags=dict(self.lane.flags),
            directory=str(directory),
            batch_sizes=list(batch_sizes),
            target=self.target,
        )
        yield child
        try:
            child.finish()
        except ChildFailure as failure:
            self.close()
            self._session.journal.append("engine_unexplained", lane=self.lane.id, reason=failure.reason)

    def _place(self, batch_sizes: Sequence[int]) -> Path:
        """Where the engine for ``batch_sizes`` lies; the last part is its id."""
        engine_id = hashlib.sha256(f"{self.lane.id}{sorted(batch_sizes)}".encode()).hexdigest()[:12]
        return self._session.places.engine(self.lane.id, engine_id)

    def _keep(
        self,
        batch_sizes: Sequence[int],
        spec: EngineSpec,
        compiled: Compiled,
        files: dict[str, str],
        maker: Maker | None = None,
    ) -> None:
        """Put an engine that is complete into the journal.

        Parameters
        ----------
        maker : Maker | None
            The study that has compiled it, where this one has not.
        """
        places, directory = self._session.places, self._place(batch_sizes)
        engine = EngineRecord(
            id=directory.name,
            lane=self.lane.id,
            batch_sizes=tuple(batch_sizes),
            directory=directory.relative_to(places.root).as_posix(),
            files=files,
            size_bytes=sum((directory / name).stat().st_size for name in files),
            flags=spec.flags,
            requires=spec.requires,
            at=time.time(),
            reused=maker,
            **dict(compiled),
        )
        event = self._session.journal.append("engine_built", **engine.model_dump(mode="json", exclude={"at"}))
        self.made.update(dict.fromkeys(batch_sizes, engine.model_copy(update={"at": event["at"]})))
        shutil.rmtree(places.work(self.lane.id, directory.name), ignore_errors=True)

    def verify(self, batch: int) -> Steps:
        """Compare the engine for ``batch`` with the baseline on other inputs than those that it will be timed on."""
        self._say(batch, "verify")("verify")
        cut_s = 0.0
        try:
            result = yield from self._try(batch)
        except _TrialTooLong as cut:
            # Known now: whatever is tried takes too long. The inputs that it is timed on are compared all the same.
            self.close()
            self._slowdown, cut_s = math.inf, cut.seconds
            result = yield from self._try(batch)
        result["seconds"] += cut_s
        self._slowdown = result.pop("slowdown") or self._slowdown
        self._session.journal.append(
            "cell_verified", cell=self.lane.cell(batch), lane=self.lane.id, batch=batch, **result
        )
        self.verified[batch] = result

    def _try(self, batch: int) -> Generator[Child, None, dict[str, Any]]:
        """Have the engine for ``batch`` compared; one trial that takes much longer than was expected is cut off."""
        limits, places = self._session.plan.study.limits, self._session.places
        keep = places.disagreement(self.lane.id, batch)
        child = self._process.start("verify")
        yield child
        child.finish()
        begun: list[str] = []
        longest_s = TRIAL_ROOM * limits.verify_seconds
        child.begin(
            "verify",
            limits.load_seconds + limits.verify_seconds,
            on_stage=begun.append,
            accounted=lambda result: float(result["load_s"] + result["seconds"]),
            stage_limits={"trials": longest_s},
            **self.loadable(batch),
            limit_s=limits.verify_seconds,
            slowdown=self._slowdown or self.compiler.expected_slowdown,
            keep=str(keep),
        )
        yield child
        try:
            result: dict[str, Any] = child.finish()
        except ChildFailure as failure:
            if failure.verdict is Verdict.TIMEOUT and begun:
                raise _TrialTooLong(longest_s) from None
            raise
        if result["kept"]:
            result["kept"] = keep.relative_to(places.root).as_posix()
        return result

    def share(self) -> None:
        """Give the cache what was compiled here and has proved to be right at every batch size that was asked for."""
        if self._cache is None:
            return
        for engine in {engine.id: engine for engine in self.made.values()}.values():
            if self._session.plan.study.build_for:
                # Whoever takes it verifies it on the device that it is for, before anything else.
                if engine.reused is None:
                    self._cache.keep(self.lane, engine, self._session.places.root / engine.directory)
                continue
            results = [self.verified[batch] for batch in engine.batch_sizes if batch in self.verified]
            wrong = [result["problem"] for result in results if result["problem"]]
            if wrong:
                self._cache.forget(self.lane, engine, wrong[0])
            elif engine.reused is None and results and not any(result["vacuous"] for result in results):
                self._cache.keep(self.lane, engine, self._session.places.root / engine.directory)

    def disown(self, batch: int, reason: str) -> None:
        """Take the engine for ``batch`` out of the cache: it has failed."""
        if self._cache is not None and batch in self.made:
            self._cache.forget(self.lane, self.made[batch], reason)

    def close(self) -> None:
        """End the process that compiles or verifies, if there is one."""
        self._process.close()

    def _say(self, batch: int, purpose: str) -> Callable[[str], None]:
        return lambda stage: self._session.journal.tell(
            "stage", lane=self.lane.id, stage=stage, batch=batch, purpose=purpose
        )
