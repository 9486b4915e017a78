"""Listening sockets: open one, name its address, refuse newcomers at its end."""

from __future__ import annotations

import ctypes
import socket
import struct
from contextlib import suppress

from mlflow_ngraph.errors import UsageError

BACKLOG = 1024
_EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104 - to be told apart, not to be listened on
_SO_ATTACH_FILTER = 26
_NO_NEWCOMERS = struct.pack(
    "=" + "HBBI" * 4,
    *(0x30, 0, 0, 13),  # load the flags of the TCP header,
    *(0x45, 0, 1, 0x02),  # and where SYN is among them
    *(0x06, 0, 0, 0),  # drop the packet,
    *(0x06, 0, 0, 0xFFFFFFFF),  # else take it whole
)
"""Classic BPF, see linux/filter.h: instructions of 8 bytes."""


def listen(host: str, port: int) -> socket.socket:
    """A socket that takes connections from now on.

    Raises
    ------
    UsageError
        The port is taken, or this machine has no such address.
    """
    try:
        # With its protocol: without one, asyncio leaves Nagle's algorithm on, and each answer waits for an acknowledgement.
        listener = socket.socket(*socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][:3])
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        raise UsageError(f"cannot listen on {host} port {port}: {error.strerror or error}") from None
    listener.setblocking(False)
    return listener


def address(listening: socket.socket) -> str:
    """Address of the server for clients on this machine."""
    host, port = listening.getsockname()[:2]
    host = "localhost" if host in _EVERYWHERE else host
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def refuse_newcomers(listening: socket.socket) -> None:
    """Have the system drop requests for new connections, for every process that shares the socket.

    Clients ask again after a second, and are refused when the socket has ended. Handshakes under way are completed.
    """
    program = ctypes.create_string_buffer(_NO_NEWCOMERS)
    # Systems without such filters reset a connection that comes at the wrong moment.
    with suppress(OSError):
        listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", 4, ctypes.addressof(program)))
