"""The exception tree of the package.

::

    NGraphError                     anything this package reports; exit code 1
    ├── UsageError                  the request was wrong; exit code 2, nothing was written
    │   ├── StudyError              a study file or a study override is invalid
    │   ├── UnknownNameError        no compiler, workload scheme, device or study has this name
    │   ├── WorkloadError           a workload cannot be found, read or built as described
    │   ├── FlagError               a compiler flag is unknown or has a wrong value
    │   ├── DeviceError             this machine cannot serve the requested device
    │   │   └── DeviceBusyError     somebody else is measuring on this machine
    │   ├── DependencyError         a package that the request needs is not installed
    │   ├── FleetError              the description of a fleet is invalid, or its engine refuses the request
    │   │   └── FleetAwayError      the engine of a fleet does not answer; exit code 1
    │   └── TrackingError           the tracking server refuses the request
    │       └── UnreachableError    the tracking server does not answer; exit code 1
    ├── CellError                   a cell has no trustworthy number; carries its verdict
    │   ├── UnsupportedError        the compiler cannot express this model, precision or mode
    │   ├── IncomparableError       an engine has other outputs than the model: their number, a shape or a type
    │   ├── ImpossibleReadingError  a clock or a counter says what cannot be
    │   └── CompileError            the compiler failed on this model
    ├── NoAnswerError               the request was right, and nothing fits it; exit code 3
    ├── EngineError                 a stored engine is damaged, or does not serve here
    │   └── TransferError           a file of an engine did not arrive: nothing is known against the engine
    ├── ArchiveError                an archive of studies is damaged, not one, or contradicts what is here
    ├── DiskFullError               a disk that a study writes to has no room left
    └── JournalError                the local record of a study is damaged or in use

A message is one line: what was wrong, where, and what to do about it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches

from mlflow_ngraph.verdicts import Verdict

_LONGEST = 200
"""Characters of a name that a message shows."""
_ROOM = 100
"""Characters of names in a row."""
_CLOSE, _LIKELY = 5, 2
"""How many of the closest names a message lists where it has no room for all, and how many it proposes."""


NO_GOOD_ANSWER = 3
"""Exit code where nothing went wrong and the answer is none to act on: cells that are not ok, limits that nothing keeps, an engine
that is not promoted, what could not be told.
"""


class NGraphError(Exception):
    """Base of every error of this package."""

    exit_code = 1


class UsageError(NGraphError):
    """The request was wrong. Raised before anything is written."""

    exit_code = 2


class StudyError(UsageError):
    """A study file, or a value that overrides it, is invalid."""


class UnknownNameError(UsageError):
    """A name is not registered.

    The message lists the registered names, the closest first; of many names only the closest.
    """

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        known = sorted(known)
        likely = _beginning(name, known)[:_LIKELY] or get_close_matches(name, known, n=1)
        hint = f"did you mean {' or '.join(map(repr, likely))}? " if likely else ""
        close = list(dict.fromkeys([*likely, *_beginning(name, known), *get_close_matches(name, known, _CLOSE, 0.4)]))
        if len(", ".join(known)) > _ROOM and close:
            listed = f"{len(known)} are known, the closest: {few(close[:_CLOSE])}"
        else:
            listed = f"known: {few(known) or 'none'}"
        shown = name if len(name) <= _LONGEST else f"{name[:_LONGEST]}..."
        super().__init__(f"unknown {kind} {shown!r}: {hint}{listed}")


def require_known(kind: str, names: Iterable[str], known: Collection[str]) -> None:
    """Raise `UnknownNameError` for the first name that is not known."""
    for name in names:
        if name not in known:
            raise UnknownNameError(kind, name, known)


def few(names: list[str]) -> str:
    """The first names that a message has room for, at least one, and how many there are more."""
    count = max(1, sum(len(", ".join(names[: place + 1])) <= _ROOM for place in range(len(names))))
    return ", ".join(names[:count]) + (f" and {len(names) - count} more" if len(names) > count else "")


def _beginning(name: str, known: Iterable[str]) -> list[str]:
    """Names with a prefix, without those that extend another such name."""
    names: list[str] = []
    for text in known:
        if name and text.startswith(name) and not any(text.startswith(f"{other}_") for other in names):
            names.append(text)
    return names


class WorkloadError(UsageError):
    """A workload cannot be found, read or built as described."""


class FlagError(UsageError):
    """A compiler flag is unknown or has a wrong value."""


class DeviceError(UsageError):
    """This machine cannot serve the requested device."""


class DeviceBusyError(DeviceError):
    """Another study is measuring on this machine; the message names it."""


class DependencyError(UsageError):
    """A package that the request needs is not installed."""


class FleetError(UsageError):
    """The description of a fleet is invalid, or its engine refuses the request."""


class FleetAwayError(FleetError):
    """The engine of a fleet does not answer; the request itself may be right."""

    exit_code = 1


class TrackingError(UsageError):
    """The tracking server cannot be reached, or refuses the request."""


class UnreachableError(TrackingError):
    """The tracking server does not answer; the request itself may be right."""

    exit_code = 1


class CellError(NGraphError):
    """A cell has no trustworthy number."""

    verdict = Verdict.FAILED


class UnsupportedError(CellError):
    """The compiler cannot express this model, precision or mode; the message is its own reason."""

    verdict = Verdict.UNSUPPORTED


class IncomparableError(CellError):
    """Outputs of an engine differ from the model's in number, shape or type."""

    verdict = Verdict.PARITY_FAILED


class ImpossibleReadingError(CellError):
    """A clock or counter gave an impossible value, so nothing measured with it counts."""


class CompileError(CellError):
    """The compiler failed on this model."""


class NoAnswerError(NGraphError):
    """Nothing that was measured fits a request that is right."""

    exit_code = NO_GOOD_ANSWER


class EngineError(NGraphError):
    """A stored engine is damaged, or does not run on this machine."""


class TransferError(EngineError):
    """A file of an engine was not transferred or stored; the engine itself may be right."""


class ArchiveError(NGraphError):
    """An archive of studies is damaged, is no archive, or conflicts with a study on this machine."""


class DiskFullError(NGraphError):
    """A disk that a study writes to is full. The study ends, and can be resumed."""


class JournalError(NGraphError):
    """The local record of a study is damaged, or another process is writing it."""
