"""Messages of a job as lines of its log: write and parse the study's events, and a journal sent in pieces.

A line that begins with `MARK` is an event, in JSON; everything else is for people. A study whose device sees no tracking
server sends its journal in such lines when it ends, compressed, and with its digest.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mlflow_ngraph.errors import FleetError

Event = dict[str, Any]
MARK = "@ngraph "
_PART = 8_000
"""Characters of the journal in a line: engines cut lines that are much longer."""
_SHOWN: Mapping[str, Sequence[str]] = {
    "session_started": ("study_id", "name", "lanes", "cells", "done"),
    "workload_started": ("workload", "label"),
    "stage": ("stage", "workload", "lane", "batch", "purpose"),
    "process_ended": ("workload", "lane"),
    "engine_built": ("lane", "reused"),
    "repeated_alone": ("workload", "lane", "reason"),
    "cache_problem": ("lane", "reason"),
    "group_closed": ("batch", "reason"),
    "cell_finished": ("cell", "lane", "batch", "verdict", "reason", "noise"),
    "left_out": ("cell", "lane", "batch", "reason"),
    "machine_busy": ("holder",),
    "journal_busy": ("reason",),
    "recording_started": ("interrupted",),
    "recording_resumed": ("directory",),
    "recording_failed": ("reason",),
    "recording_waits": ("lanes", "reason"),
    "server_away": ("reason",),
    "study_is_large": ("home_bytes", "artifact_bytes", "memory_bytes"),
    "workload_refused": ("label", "reason"),
    "lane_recorded": ("lane",),
}
"""Events of a study that a client shows, with the fields it needs. No samples, and no events between slices."""
_OF_LANES = ("id", "label", "compiler_label", "precision")


def line(event: str, **fields: Any) -> str:
    """Line of an event, without its end."""
    return MARK + json.dumps({"event": event, **fields}, separators=(",", ":"), default=str)


def of_study(event: Mapping[str, Any]) -> str | None:
    """The line for an event of a study; None where no client needs it."""
    kind = str(event.get("event"))
    if kind not in _SHOWN:
        return None
    fields = {name: event[name] for name in _SHOWN[kind] if name in event}
    if "lanes" in fields:
        fields["lanes"] = [{name: lane[name] for name in _OF_LANES} for lane in fields["lanes"]]
    return line(kind, **fields)


def of_journal(content: bytes) -> Iterator[str]:
    """Lines that carry a journal."""
    text = base64.b64encode(zlib.compress(content, 9)).decode()
    for start in range(0, len(text), _PART):
        yield line("journal_part", data=text[start : start + _PART])
    yield line("journal_end", sha256=hashlib.sha256(content).hexdigest())


@dataclass
class Listener:
    """Parser of a growing log, which tells events from lines for people."""

    journal: bytes | None = None
    """The journal that came, once it is whole."""
    _taken: int = 0
    _parts: list[str] = field(default_factory=list)

    def hear(self, log: str) -> Iterator[Event | str]:
        """Parse the new part of a log: events, and lines for people. A last line without its end is kept for later.

        Raises
        ------
        FleetError
            The journal was damaged on its way.
        """
        if len(log) < self._taken:
            return  # its device is away for a moment; nothing that was said is taken back
        end = log.rfind("\n") + 1
        new, self._taken = log[self._taken : end], max(self._taken, end)
        for text in new.splitlines():
            event = _event(text)
            if event is None:
                yield text
            elif not self._keeps(event):
                yield event

    def _keeps(self, event: Event) -> bool:
        """Collect the parts of the journal; False for other events."""
        if event["event"] == "journal_part":
            self._parts.append(str(event.get("data", "")))
            return True
        if event["event"] != "journal_end":
            return False
        try:
            content = zlib.decompress(base64.b64decode("".join(self._parts), validate=True))
        except (ValueError, zlib.error):
            content = b""
        self._parts = []
        if hashlib.sha256(content).hexdigest() != event.get("sha256"):
            raise FleetError(
                "the journal was damaged on its way here; it is whole on the device, for mlflow-ngraph study sync there"
            )
        self.journal = content
        return True


def _event(text: str) -> Event | None:
    if not text.startswith(MARK):
        return None
    try:
        event = json.loads(text[len(MARK) :])
    except ValueError:
        return None
    return event if isinstance(event, dict) and isinstance(event.get("event"), str) else None
