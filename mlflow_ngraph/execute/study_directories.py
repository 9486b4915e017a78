"""Study directories on disk: layout and names; find studies by name, id or key; tell open and recorded ones."""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mlflow_ngraph import home
from mlflow_ngraph.errors import JournalError, UnknownNameError, UsageError
from mlflow_ngraph.execute import journal
from mlflow_ngraph.text import counted

if TYPE_CHECKING:
    from mlflow_ngraph.study import Study


_BACK = re.compile(r"(.+)~(\d{1,6})")
_RUN = re.compile(r"[0-9a-f]{32}")
_AFTER_THE_END = ("record_opened", "lane_opened", "lane_recorded", "recording_failed")
"""Events that may follow the end of measuring, as recording comes later."""

End = Literal["open", "measured", "recorded"]
"""State of a study: cells missing; measured but perhaps not recorded; nothing left to do."""


@dataclass(frozen=True)
class StudyPaths:
    """Paths within a study directory."""

    root: Path

    def materials(self, workload: str) -> Path:
        """Materials that all lanes of a workload start from."""
        return self.root / "materials" / hashlib.sha256(workload.encode()).hexdigest()[:12]

    def engine(self, lane: str, engine: str) -> Path:
        return self.root / "engines" / lane / engine

    def log(self, name: str) -> Path:
        """Standard error of a child process."""
        return self.root / "logs" / f"{name}.log"

    def disagreement(self, lane_id: str, batch: int) -> Path:
        """Inputs on which engine and baseline disagree, with both outputs."""
        return self.root / "disagreements" / f"{lane_id}-b{batch}.npz"

    def work(self, lane_id: str, engine_id: str) -> Path:
        """Files that a compilation keeps for its next attempt, such as a tuning database; deleted on success."""
        return self.root / "work" / lane_id / engine_id

    def scratch(self, name: str) -> Path:
        """Compiler caches of a child process; deleted after its workload."""
        return self.root / "scratch" / name


def study_key(study: Study, device: str, machine: str) -> str:
    """Digest of the study, device and machine: equal keys can be resumed."""
    return hashlib.sha256(f"{study.digest()}/{device}/{machine}".encode()).hexdigest()[:8]


def new_directory(root: Path, study: Study, key: str) -> Path:
    """Create a new directory, named by study, key and time, and by chance: equal machines may begin in the same second."""
    path = root / "studies" / f"{study.name}-{key}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}"
    path.mkdir()
    return path


def newest(root: Path, key: str, machine: str) -> Path | None:
    """The newest study with this key that was begun here, or None; what was imported is nobody's to go on with."""
    begun = {
        path: start["at"]
        for path in (root / "studies").glob(f"*-{key}-*")
        if not (path / home.IMPORTED_FROM).exists()
        and (path / journal.FILE_NAME).is_file()
        and (start := journal.first(path)) is not None
        and start["fingerprint"].get("digest", "") == machine
    }
    return max(begun, key=begun.__getitem__, default=None)


def imported(root: Path, key: str) -> str:
    """Name studies with this key that came in archives, and whose they are; empty without such."""
    marks = sorted((root / "studies").glob(f"*-{key}-*/{home.IMPORTED_FROM}"))
    return "; ".join(f"{mark.parent.name} is from {mark.read_text(encoding='utf-8')}" for mark in marks)


def measured_before(directory: Path) -> Begun | None:
    """The latest earlier study of the same name and machine that was begun here and measured completely, or None."""
    studies = begun(directory.parent.parent)
    earlier = (
        study
        for this in studies
        for study in studies
        if this.directory == directory
        if (study.name, study.machine) == (this.name, this.machine)
        and study.at < this.at
        and not (study.directory / home.IMPORTED_FROM).exists()
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
    """The first event of a study's journal."""

    directory: Path
    study_id: str
    name: str
    device: str
    machine: str
    """Digest of the fingerprint."""
    at: float
    """Unix seconds."""


def begun(root: Path) -> list[Begun]:
    """The studies in a home, newest first, without those with a damaged journal."""
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
    """Find the directory of a study.

    ``text`` is its directory, or the name of that in the home; its id, or that of its run; or its name, for the latest
    of that name, with ``~1`` appended for the one before. Raises `UsageError` if there is none, or too few of them.
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
    """Split ``quick~1`` into the name and the number of studies to go back."""
    match = _BACK.fullmatch(text)
    return (text, 0) if match is None else (match[1], int(match[2]))


def too_few(text: str, count: int) -> UsageError:
    """Error text for going back further than there are studies."""
    return UsageError(f"{text!r} is not there: {counted(count, 'study has', 'studies have')} this name")


def recorded_as(directory: Path) -> str:
    """Run id under which a server has all of a study, according to its journal; empty if none has."""
    for event in journal.read_backwards(directory):
        if event["event"] not in _AFTER_THE_END:
            return str(event["run_id"]) if event["event"] == "study_recorded" else ""
    return ""


def recorded(root: Path) -> Iterator[str]:
    """Run ids under which servers have studies of a home, newest study first."""
    for study in begun(root):
        with suppress(JournalError):
            if run_id := recorded_as(study.directory):
                yield run_id


def unrecorded(root: Path) -> list[Path]:
    """Idle studies that no server has completely, oldest first."""
    waiting = {}
    for path in (root / "studies").glob(f"[!.]*/{journal.FILE_NAME}"):
        # Recording one that may not be written says so.
        with suppress(JournalError), ExitStack() as stack:
            with suppress(OSError):
                stack.enter_context(journal.held(path.parent))
            if _lacks_recording(path.parent):
                waiting[path.parent] = path.stat().st_mtime
    return sorted(waiting, key=waiting.__getitem__)


def _lacks_recording(directory: Path) -> bool:
    """Damaged ones count: recording them reports the damage."""
    try:
        return journal.first(directory) is not None and not recorded_as(directory)
    except JournalError:
        return True


def end(directory: Path) -> End:
    """State of a study after its last session, by the end of its journal.

    Raises as `journal.read_backwards`, and `JournalError` if the end is malformed.
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
