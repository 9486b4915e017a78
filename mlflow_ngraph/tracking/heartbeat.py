"""Heartbeat: writes signs of life into a study run from a thread, and tests if another process is writing a run."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil

from mlflow_ngraph.devices import fingerprint
from mlflow_ngraph.tracking import connection
from mlflow_ngraph.tracking.schema import Tag

if TYPE_CHECKING:
    from mlflow import MlflowClient

BEAT_S = 60.0
"""Interval between two signs of life: a small request, negligible beside measuring."""
_SILENT_S = 2 * BEAT_S
"""A recorder has ended when it gave no sign of life for so long."""
_THREAD = "heartbeat"

_log = logging.getLogger(__name__)


class Heartbeat:
    """Writes a tag of a run again and again in a daemon thread; errors of the server are ignored.

    Its moments are those of the server's clock: two machines need not agree on the time.
    """

    def __init__(self, client: MlflowClient, tracking_uri: str) -> None:
        self._client = client
        self._ahead_s = connection.server_time(tracking_uri) - time.time()
        self._ended = threading.Event()

    def tags(self) -> dict[str, str]:
        """A sign of life of this process, for a run that it begins to write."""
        return {Tag.RECORDER: _process(os.getpid()), Tag.ALIVE_AT: f"{self._now():.0f}"}

    def is_of_another(self, tags: Mapping[str, str]) -> bool:
        """Test if another process is writing a run, by its tags."""
        recorder, here = tags.get(Tag.RECORDER, ""), _process(os.getpid())
        host, _, rest = recorder.partition("/")
        try:
            # Slightly later than now is a matter of rounding; much later is a forgery that would never end.
            silent_s = abs(self._now() - float(tags.get(Tag.ALIVE_AT, "")))
        except ValueError:
            return False
        if recorder in ("", here) or silent_s >= _SILENT_S:
            return False
        pid = rest.partition("/")[0]
        return host != fingerprint.host() or (pid.isdecimal() and _process(int(pid)) == recorder)

    def start(self, run_id: str) -> None:
        """Write one sign after the other until `stop`, beginning after an interval."""
        # MLflow itself logs each error of a database, with its traceback.
        logging.getLogger("mlflow.store.db.utils").addFilter(_of_others)
        threading.Thread(target=self._go_on, args=(run_id,), name=_THREAD, daemon=True).start()

    def stop(self) -> None:
        self._ended.set()

    def _go_on(self, run_id: str) -> None:
        while not self._ended.wait(BEAT_S):
            try:
                self._client.set_tag(run_id, Tag.ALIVE_AT, f"{self._now():.0f}")
            except Exception:  # noqa: BLE001 - whatever it is, the study goes on, and so does this
                _log.debug("no sign of life could be written", exc_info=True)

    def _now(self) -> float:
        return time.time() + self._ahead_s


def _of_others(record: logging.LogRecord) -> bool:
    return record.threadName != _THREAD


def _process(pid: int) -> str:
    """A process, told apart from later ones with its number; empty where it has ended."""
    with suppress(psutil.Error, OverflowError):
        process = psutil.Process(pid)
        if process.status() != psutil.STATUS_ZOMBIE:
            return f"{fingerprint.host()}/{pid}/{process.create_time():.0f}"
    return ""
