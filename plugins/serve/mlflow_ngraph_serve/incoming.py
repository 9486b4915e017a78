"""Incoming: h11's parser of HTTP requests, which refuses bodies in very many tiny chunks."""

from __future__ import annotations

from typing import Any

import h11

CHUNKS, SMALLEST = 1000, 64
"""Chunks of a body that may be of any size, and bytes that those of a body with more of them have on average."""


class Incoming(h11.Connection):
    """Refuses bodies in tiny chunks: each takes microseconds of the event loop, and a megabyte has a million of them.

    Attributes
    ----------
    problem: why it has refused a body; empty where HTTP itself was broken.
    """

    problem = ""
    _chunks = _bytes = 0

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._chunks = self._bytes = 0
        elif isinstance(event, h11.Data):
            self._chunks += event.chunk_end
            self._bytes += len(event.data)
            if self._chunks > CHUNKS and self._bytes < SMALLEST * self._chunks:
                self.problem = f"over {CHUNKS} chunks have less than {SMALLEST} bytes on average: send larger ones"
                raise h11.RemoteProtocolError(self.problem)
        return event
