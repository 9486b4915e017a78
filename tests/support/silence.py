"""A server that accepts whoever comes, and never answers."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

LOGIN = "annalena:s3cret"


@contextmanager
def silent() -> Iterator[str]:
    """Its address, with a login."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(64)
        yield f"http://{LOGIN}@127.0.0.1:{listening.getsockname()[1]}"
