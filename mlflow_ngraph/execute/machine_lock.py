"""ExclusiveMachine: one benchmark at a time on a machine, across processes and users.

Concurrent studies disturb each other. The holder has an exclusive lock on a file that all users share; the kernel
releases it when the process ends. The content of the file only names the holder.

The package filelock, which guards journals, polls while it waits and empties the file. A waiting study must not disturb
the measurement, and has to name the holder.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import getpass
import json
import os
import socket
import stat
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal

from mlflow_ngraph.errors import DeviceBusyError, DeviceError

WhenBusy = Literal["wait", "refuse"]

FOLDERS = (Path("/run/lock"), Path("/var/tmp"), Path("/tmp"))  # noqa: S108 - shared by all users, and holds no data
"""Candidate folders: the first one writable by everybody, so that all users agree on it."""
VARIABLE = "NGRAPH_LOCK_DIR"
"""Environment variable with another folder, such as one shared by the containers of a machine."""
NAME = "mlflow-ngraph.lock"

_PATIENCE_S = 1.0
"""Seconds until a holder that has not written its name counts as unknown."""
_LOOK_AGAIN_S = 0.05


@dataclass(frozen=True)
class Holder:
    """The process that measures on this machine."""

    pid: int
    host: str
    """Host name; in a container that of the container, which has its own process numbers."""
    user: str
    study: str
    since: float
    """Unix seconds."""

    @classmethod
    def myself(cls, study: str) -> Holder:
        return cls(os.getpid(), socket.gethostname(), _user(), study, time.time())

    def __str__(self) -> str:
        where = "" if self.host == socket.gethostname() else f" in {self.host}"
        since = time.strftime("%H:%M", time.localtime(self.since))
        return f"study {self.study!r} of {self.user} (process {self.pid}{where}, since {since})"


class ExclusiveMachine:
    """Holds the machine within a ``with`` block. Others are shown the name ``study``.

    ``on_wait`` is called once before waiting, with the holder or None if unknown. The ``folder`` of the lock is by
    default ``$NGRAPH_LOCK_DIR``, else the first of `FOLDERS` that everybody may write. Raises `DeviceBusyError` if the
    machine is held and ``when_busy`` is ``refuse``, and `DeviceError`, which names the path, if the lock cannot be
    created.
    """

    def __init__(
        self,
        study: str,
        when_busy: WhenBusy = "refuse",
        on_wait: Callable[[Holder | None], None] = lambda holder: None,
        folder: Path | None = None,
    ) -> None:
        self._study = study
        self._when_busy = when_busy
        self._on_wait = on_wait
        self._path = (folder or lock_folder()) / NAME
        self._file: int | None = None

    def __enter__(self) -> ExclusiveMachine:
        file = _open(self._path)
        try:
            self._lock(file)
            _write(file, Holder.myself(self._study))
        except BaseException:
            os.close(file)
            raise
        self._file = file
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def release(self) -> None:
        """Release the lock. Releasing again does nothing."""
        if self._file is not None:
            # The file stays: waiting processes have it open, and would lock another one if it were replaced.
            os.ftruncate(self._file, 0)
            os.close(self._file)
            self._file = None

    def _lock(self, file: int) -> None:
        if self._at_once(file):
            return
        deadline = time.monotonic() + _PATIENCE_S
        while (other := _read(file)) is None and time.monotonic() < deadline:
            # The holder has just begun, or is only reading the name.
            time.sleep(_LOOK_AGAIN_S)
            if self._at_once(file):
                return
        if self._when_busy == "refuse":
            who = other or "somebody who does not say who it is"
            raise DeviceBusyError(f"this machine is measuring {who}; wait for its end with --when-busy wait")
        self._on_wait(other)
        # Sleeps in the kernel until the holder is gone: polling would disturb the measurement.
        fcntl.flock(file, fcntl.LOCK_EX)

    def _at_once(self, file: int) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return False
            raise DeviceError(
                f"cannot lock {self._path}: {error.strerror}; name another folder in {VARIABLE}"
            ) from None
        return True


def holder(folder: Path | None = None) -> Holder | None:
    """The current holder of the machine, or None."""
    try:
        file = os.open((folder or lock_folder()) / NAME, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return _read(file)
    else:
        return None
    finally:
        os.close(file)


def lock_folder() -> Path:
    """Folder of the lock on this machine."""
    given = os.environ.get(VARIABLE)
    if given:
        return Path(given)
    return next((folder for folder in FOLDERS if _shared(folder)), FOLDERS[-1])


def _shared(folder: Path) -> bool:
    """Return True when everybody may write there: a folder for root alone would not exclude other users."""
    with contextlib.suppress(OSError):
        return bool(folder.stat().st_mode & stat.S_IWOTH) and os.access(folder, os.W_OK)
    return False


def _open(path: Path) -> int:
    """Open the lock file, writable by everybody.

    Opened before it is created: in sticky folders the kernel refuses ``O_CREAT`` on other users' files.
    """
    for _ in range(3):
        with contextlib.suppress(FileNotFoundError):
            file = _attempt(path, os.O_RDWR)
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
                os.close(file)
                raise DeviceError(
                    f"{path} is no file of its own, and what is locked is emptied: delete it, or name another folder in {VARIABLE}"
                )
            return file
        with contextlib.suppress(FileExistsError):
            file = _attempt(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            os.fchmod(file, 0o666)  # whatever the umask says
            return file
    raise DeviceError(f"cannot make {path}: it comes and goes; name another folder in {VARIABLE}")


def _attempt(path: Path, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    except (FileNotFoundError, FileExistsError):
        if path.parent.is_dir():
            raise
        raise DeviceError(f"there is no folder {path.parent}, which {VARIABLE} names") from None
    except OSError as error:
        raise DeviceError(
            f"cannot open {path}, which keeps benchmarks apart: {error.strerror}; name another folder in {VARIABLE}"
        ) from None


def _write(file: int, holder: Holder) -> None:
    os.ftruncate(file, 0)
    os.pwrite(file, json.dumps(asdict(holder)).encode(), 0)


def _read(file: int) -> Holder | None:
    """The holder's entry; None until it is written."""
    with contextlib.suppress(ValueError, TypeError):
        return Holder(**json.loads(os.pread(file, 4096, 0)))
    return None


def _user() -> str:
    """Name of the user, or its number, as containers may have no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"
