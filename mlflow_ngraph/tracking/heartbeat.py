"""Heartbeat of a study run, which tells it from one whose process has died."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from mlflow_ngraph.tracking import connection
from mlflow_ngraph.tracking.schema import Tag

if TYPE_CHECKING:
    from mlflow import MlflowClient

BEAT_S = 300.0
"""Interval between two signs of life: a small request, negligible beside measuring."""

_log = logging.getLogger(__name__)


class Heartbeat:
    """Writes a tag of a run again and again in a daemon thread; errors of the server are ignored.

    Its moments are those of the server's clock: two machines need not agree on the time.
    """

    def __init__(self, client: MlflowClient, tracking_uri: str) -> None:
        self._client = client
        self._ahead_s = connection.server_time(tracking_uri) - time.time()
        self._ended = threading.Event()

    def start(self, run_id: str) -> None:
        """Write the first sign, then one after the other until `stop`."""
        self._beat(run_id)
        threading.Thread(target=self._go_on, args=(run_id,), name="heartbeat", daemon=True).start()

    def stop(self) -> None:
        self._ended.set()

    def _go_on(self, run_id: str) -> None:
        while not self._ended.wait(BEAT_S):
            try:
                self._beat(run_id)
            except Exception:  # noqa: BLE001 - whatever it is, the study goes on, and so does this
                _log.debug("no sign of life could be written", exc_info=True)

    def _beat(self, run_id: str) -> None:
        self._client.set_tag(run_id, Tag.ALIVE_AT, f"{time.time() + self._ahead_s:.0f}")
