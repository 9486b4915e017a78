"""LaneEngines: the engines of one lane, found or compiled, verified and cached."""

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
from mlflow_ngraph.engines.files import damage, digest_files, irregular_entry
from mlflow_ngraph.engines.manifest import Compiled, Maker
from mlflow_ngraph.errors import UnsupportedError
from mlflow_ngraph.execute.answers import Built, VerifyAnswer
from mlflow_ngraph.execute.cache import EngineCache
from mlflow_ngraph.execute.lane_process import LaneProcess
from mlflow_ngraph.execute.process_pool import Steps
from mlflow_ngraph.execute.record import EngineRecord, Lane
from mlflow_ngraph.execute.session import Session
from mlflow_ngraph.processes.child import Child, ChildFailure
from mlflow_ngraph.verdicts import Verdict

TRIAL_ROOM = 1.1
"""Limit of all trials of an engine, in units of ``limits.verify_seconds``: the duration of the first trial is unknown.
"""


class _TrialTooLong(Exception):  # noqa: N818 - what was found, and no fault
    """The first trial of an engine exceeded its time."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class LaneEngines:
    """Provides the engines of one lane.

    Long operations are steps for a process pool. They raise `ChildFailure` when they have no result.
    Without a cache all engines are compiled.
    """

    def __init__(self, session: Session, lane: Lane, cache: EngineCache | None = None) -> None:
        self.lane = lane
        self.compiler: Compiler[Any] = create(lane.compiler, lane.flags)
        self.made: dict[int, EngineRecord] = {}
        """Engines by batch size."""
        self.verified: dict[int, VerifyAnswer] = {}
        """Results of verification by batch size."""
        self.impure = ""
        """Reason why the model is no function of its inputs, so that no engine can be verified; empty when it is one.
        """
        self._session = session
        self._cache = cache
        self._process = LaneProcess(session, lane, self.compiler)
        self._slowdown: float | None = None
        """Call time of the last verified engine relative to the baseline."""

    @property
    def overhead_s(self) -> float:
        """Seconds of the processes that belong to no named stage."""
        return self._process.overhead_s

    @property
    def target(self) -> dict[str, Any]:
        """Fields of the `Target`."""
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
        """Key of the engine compiled from these materials on this machine."""
        return key.recipe(self.compiler, Target(**self.target), batch_sizes, materials).key()

    def unsupported(self) -> str | None:
        """Reason why the compiler does not support this lane, or None."""
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
        """Fields of a command that loads an engine and compares it with the baseline."""
        paths = self._session.paths
        return {
            "compiler": self.lane.compiler,
            "flags": dict(self.lane.flags),
            "directory": str(paths.root / self.made[batch].directory),
            "materials": str(paths.materials(self.lane.workload)),
            "batch": batch,
            "target": self.target,
        }

    def reuse(self, engine: EngineRecord) -> bool:
        """Reuse an engine of an earlier session if its files are unchanged."""
        directory = self._session.paths.root / engine.directory
        if not directory.is_dir() or irregular_entry(directory) or digest_files(directory) != dict(engine.files):
            return False
        self.made.update(dict.fromkeys(engine.batch_sizes, engine))
        return True

    def take(self, batch_sizes: Sequence[int], key: str) -> bool:
        """Take an engine from the cache; False when it has to be compiled."""
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
        """Compile and save an engine in the compiling process.

        ``beside`` is asked at the end for the largest number of concurrent jobs.
        """
        final = self._place(batch_sizes)
        partial = final.with_name(f"{final.name}.partial")
        for left_over in (final, partial):
            shutil.rmtree(left_over, ignore_errors=True)
        self._say(batch_sizes[0], "build")("compile")
        child = self._process.start("build")
        yield child
        child.finish()
        limits, paths = self._session.plan.study.limits, self._session.paths
        child.begin(
            "build",
            limits.compile_seconds + (limits.search_seconds if self.compiler.searches else 0.0),
            on_stage=self._say(batch_sizes[0], "build"),
            accounted=lambda result: float(result["seconds"]),
            compiler=self.lane.compiler,
            flags=dict(self.lane.flags),
            materials=str(paths.materials(self.lane.workload)),
            directory=str(partial),
            work=str(paths.work(self.lane.id, final.name)),
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
        self._keep(batch_sizes, EngineSpec.read(final), compiled, files, stopped_s=result["stopped_s"])

    def _explain(self, directory: Path, batch_sizes: Sequence[int]) -> Steps:
        """Save the compiler's explanation. A failure costs the explanation and not the engine."""
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
        """Directory of the engine; the last part is its id."""
        engine_id = hashlib.sha256(f"{self.lane.id}{sorted(batch_sizes)}".encode()).hexdigest()[:12]
        return self._session.paths.engine(self.lane.id, engine_id)

    def _keep(
        self,
        batch_sizes: Sequence[int],
        spec: EngineSpec,
        compiled: Compiled,
        files: dict[str, str],
        maker: Maker | None = None,
        stopped_s: Sequence[float] = (),
    ) -> None:
        """Write a complete engine to the journal; ``maker`` is the study that compiled it, if another one did."""
        paths, directory = self._session.paths, self._place(batch_sizes)
        engine = EngineRecord(
            id=directory.name,
            lane=self.lane.id,
            batch_sizes=tuple(batch_sizes),
            directory=directory.relative_to(paths.root).as_posix(),
            files=files,
            size_bytes=sum((directory / name).stat().st_size for name in files),
            flags=spec.flags,
            requires=spec.requires,
            at=time.time(),
            reused=maker,
            stopped_s=list(stopped_s),
            **dict(compiled),
        )
        event = self._session.journal.append("engine_built", **engine.model_dump(mode="json", exclude={"at"}))
        self.made.update(dict.fromkeys(batch_sizes, engine.model_copy(update={"at": event["at"]})))
        shutil.rmtree(paths.work(self.lane.id, directory.name), ignore_errors=True)

    def verify(self, batch: int) -> Steps:
        """Compare an engine with the baseline on inputs other than the timed ones."""
        self._say(batch, "verify")("verify")
        cut_s = 0.0
        try:
            result = yield from self._try(batch)
        except _TrialTooLong as cut:
            # All trials take too long. The timed inputs are compared regardless.
            self.close()
            self._slowdown, cut_s = math.inf, cut.seconds
            result = yield from self._try(batch)
        result["seconds"] += cut_s
        self._slowdown = result.pop("slowdown") or self._slowdown
        self._session.journal.append(
            "cell_verified", cell=self.lane.cell(batch), lane=self.lane.id, batch=batch, **result
        )
        self.verified[batch] = result

    def _try(self, batch: int) -> Generator[Child, None, VerifyAnswer]:
        """Run the trials; one that far exceeds its expected time is cut off."""
        limits, paths = self._session.plan.study.limits, self._session.paths
        keep = paths.disagreement(self.lane.id, batch)
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
            result: VerifyAnswer = child.finish()
        except ChildFailure as failure:
            if failure.verdict is Verdict.TIMEOUT and begun:
                raise _TrialTooLong(longest_s) from None
            raise
        if result["kept"]:
            result["kept"] = keep.relative_to(paths.root).as_posix()
        return result

    def share(self) -> None:
        """Add compiled engines to the cache that passed at every requested batch size."""
        if self._cache is None:
            return
        for engine in {engine.id: engine for engine in self.made.values()}.values():
            if self._session.plan.study.build_for:
                # It is verified on its own device before use.
                if engine.reused is None:
                    self._cache.keep(self.lane, engine, self._session.paths.root / engine.directory)
                continue
            results = [self.verified[batch] for batch in engine.batch_sizes if batch in self.verified]
            wrong = [result["problem"] for result in results if result["problem"]]
            if wrong:
                self._forget(engine, wrong[0])
            elif engine.reused is None and results and not any(result["vacuous"] for result in results):
                self._cache.keep(self.lane, engine, self._session.paths.root / engine.directory)

    def evict(self, batch: int, reason: str) -> None:
        """Remove a failed engine from the cache."""
        if batch in self.made:
            self._forget(self.made[batch], reason)

    def _forget(self, engine: EngineRecord, reason: str) -> None:
        """Remove a wrong engine from the cache, unless what failed is not what the cache has."""
        self._session.require_folder()
        if self._cache is not None and not damage(self._session.paths.root / engine.directory, engine.files):
            self._cache.forget(self.lane, engine, reason)

    def close(self) -> None:
        self._process.close()

    def _say(self, batch: int, purpose: str) -> Callable[[str], None]:
        return lambda stage: self._session.journal.tell(
            "stage", lane=self.lane.id, stage=stage, batch=batch, purpose=purpose
        )
