"""Read exported programs from files. Imports torch: for child processes only."""

from __future__ import annotations

import logging
from pathlib import Path

import torch


def read(file: Path) -> torch.export.ExportedProgram:
    """Read the file of ``torch.export.save``.

    An exception of PyTorch has the last logged exception as its cause, because it often only points to the log.
    """
    logged = _Logged()
    log = logging.getLogger("torch.export")
    log.addHandler(logged)
    try:
        return torch.export.load(file)
    except RuntimeError as error:
        if logged.error is None:
            raise
        raise error from logged.error
    finally:
        log.removeHandler(logged)


class _Logged(logging.Handler):
    """Keeps the last exception that is logged."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.error: BaseException | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            self.error = record.exc_info[1]
