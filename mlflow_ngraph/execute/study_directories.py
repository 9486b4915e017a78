"""Where studies live on disk, and which of them can be resumed."""

from __future__ import annotations

import hashlib
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mlflow_ngraph.errors import JournalError, UnknownNameError, UsageError
from mlflow_ngraph.execute import journal
from mlflow_ngraph.text import counted

if TYPE_CHECKING:
    from mlflow_ngraph.study import Study


_BACK = re.compile(r"(.+)~(\d{1,6})")
_RUN = re.compile(r"[0-9a-f]{32}")
_AFTER_THE_END = ("lane_recorded", "recording_failed")
"""Events that still follow the last one of a measured study: it is recorded when nobody is measured any more."""

End = Literal["open", "measured", "recorded"]
"""How far a study came: cells are missing; every cell is measured, and a tracking server should have it but may not; or
nothing is left to do."""


@dataclass(frozen=True)
class Places:
    """Where things lie in a study directory."""

    root: Path

    def materials(self, workload: str) -> Path:
        """What all lanes of a workload start from."""
        return self.root / "materials" / hashlib.sha256(workload.encode()).hexdigest()[:12]

    def engine(self, lane: str, engine: str) -> Path:
        """A compiled engine."""
        return self.root / "engines" / lane / engine

    def log(self, name: str) -> Path:
        """What a child process printed."""
        return self.root / "logs" / f"{name}.log"

    def disagreement(self, lane_id: str, batch: int) -> Path:
        """Inputs for which an engine has other outputs than the baseline, with both."""
        return self.root / "disagreements" / f"{lane_id}-b{batch}.npz"

    def work(self, lane_id: str, engine_id: str) -> Path:
        """What a compilation keeps for its next attempt, such as the database of a search; gone once it succeeded."""
        return self.root / "work" / lane_id / engine_id

    def scratch(self, name: str) -> Path:
        """Compiler caches of a child process; gone after its workload."""
        return self.root / "scratch" / name


def study_key(study: Study, device: str, machine: str) -> str:
    """Equal for equal studies on equal machines: what may be resumed."""
    return hashlib.sha256(f"{study.digest()}/{device}/{machine}".encode()).hexdigest()[:8]


def new_directory(root: Path, study: Study, key: str) -> Path:
    """A directory that does not exist yet, named by study, key and time."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for count in range(1, 1000):
        path = root / "studies" / (f"{study.name}-{key}-{stamp}" + (f"-{count}" if count > 1 else ""))
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise UsageError(f"too many studies named {study.name} in {root}; choose another name or --home")


def newest(root: Path, key: str) -> Path | None:
    """The newest study directory with this key that has begun, or None."""
    begun = {
        path: start["at"]
        for path in (root / "studies").glob(f"*-{key}-*")
        if (path / journal.FILE_NAME).is_file() and (start := journal.first(path)) is not None
    }
    return max(begun, key=begun.__getitem__, default=None)


def measured_before(directory: Path) -> Begun | None:
    """The latest study of the same name on the same machine that was measured to its end before; None where there is none."""
    studies = begun(directory.parent.parent)
    earlier = (
        study
        for this in studies
        for study in studies
        if this.directory == directory
        if (study.name, study.machine) == (this.name, this.machine)
        and study.at < this.at
        and _is_whole(study.directory)
    )
    return next(earlier, None)


def _is_whole(directory: Path) -> bool:
    try:
        return end(directory) != "open"
    except JournalError:
        return False


@dataclass(frozen=True)
class Begun:
    """A study that has begun, as the first event of its journal says."""

    directory: Path
    study_id: str
    name: str
    device: str
    machine: str
    """Digest of the fingerprint."""
    at: float
    """Unix seconds."""


def begun(root: Path) -> list[Begun]:
    """The studies in a home, the newest first; one with a damaged journal is left out."""
    found = []
    for path in (root / "studies").glob(f"[!.]*/{journal.FILE_NAME}"):
        with suppress(JournalError):
            start = journal.first(path.parent)
            if start is not None:
                machine = str(start["fingerprint"].get("digest", ""))
                name = start["study"]["name"]
                found.append(Begun(path.parent, start["study_id"], name, start["device"], machine, start["at"]))
    return sorted(found, key=lambda study: study.at, reverse=True)


def named(root: Path, text: str) -> Path:
    """The directory of the study that somebody names.

    Parameters
    ----------
    text : str
        Its directory, or the name of that in the home; its id, or that of its run; or its name, which is the latest study of
        this name, with ``~1`` behind it the one before.

    Raises
    ------
    UsageError
        There is none, or not so many.
    """
    if (Path(text) / journal.FILE_NAME).is_file():
        return Path(text)
    if (path := root / "studies" / text).is_dir():
        return path
    studies, (name, back) = begun(root), counted_back(text)
    for study in studies:
        if text == study.study_id or (_RUN.fullmatch(text) and text == recorded_as(study.directory)):
            return study.directory
    alike = [study.directory for study in studies if study.name == name]
    if not alike and Path(text).is_dir():
        return Path(text)  # whoever reads it says what it lacks
    if not alike:
        raise UnknownNameError("study", text, {study.name for study in studies})
    if back >= len(alike):
        raise too_few(text, len(alike))
    return alike[back]


def counted_back(text: str) -> tuple[str, int]:
    """The name of a study, and how many of this name to go back from the latest: ``quick~1`` is the one before."""
    match = _BACK.fullmatch(text)
    return (text, 0) if match is None else (match[1], int(match[2]))


def too_few(text: str, count: int) -> UsageError:
    """What to say where one goes back further than there are studies."""
    return UsageError(f"{text!r} is not there: {counted(count, 'study has', 'studies have')} this name")


def recorded_as(directory: Path) -> str:
    """The id of the run by which a tracking server has all of a study, as its journal says; empty where none has."""
    for event in journal.read_backwards(directory):
        if event["event"] not in _AFTER_THE_END:
            return str(event["run_id"]) if event["event"] == "study_recorded" else ""
    return ""


def is_recorded(directory: Path) -> bool:
    """Whether a tracking server has all of a study, as its journal says."""
    return bool(recorded_as(directory))


def unrecorded(root: Path) -> list[Path]:
    """The directories of studies that no tracking server has all of and that nobody is at work on, the oldest first."""
    waiting = {}
    for path in (root / "studies").glob(f"*/{journal.FILE_NAME}"):
        with suppress(JournalError, OSError), journal.held(path.parent):
            if not path.parent.name.startswith(".") and _lacks_recording(path.parent):
                waiting[path.parent] = path.stat().st_mtime
    return sorted(waiting, key=waiting.__getitem__)


def _lacks_recording(directory: Path) -> bool:
    """One that is damaged does as well: who records it says what is wrong."""
    try:
        return journal.first(directory) is not None and not is_recorded(directory)
    except JournalError:
        return True


def end(directory: Path) -> End:
    """How far the last session of a study came, by the end of its journal.

    Raises
    ------
    JournalError
        As in `journal.read_backwards`, and for an end that does not say what it should.
    """
    recorded = False
    for event in journal.read_backwards(directory):
        kind = event["event"]
        if kind == "study_recorded":
            recorded = True
        elif kind == "study_finished":
            if "offline" not in event:
                raise JournalError(
                    f"{directory / journal.FILE_NAME}: study_finished does not say whether it was offline; restore the "
                    "file, or start the study afresh"
                )
            return "recorded" if recorded or event["offline"] else "measured"
        elif kind not in _AFTER_THE_END:
            break
    return "open"
