"""The tar file that an archive is. Its table of contents allows one sequence of bytes and no other.

Everything between the files follows from their names and sizes, so a reader compares, and parses nothing: there are no links
and no second names, no size can lie, and a single bit that is different anywhere is found. ``tar xf`` unpacks it.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from typing import IO

from mlflow_ngraph.errors import ArchiveError

_BLOCK, _RECORD = tarfile.BLOCKSIZE, tarfile.RECORDSIZE
_SIZE = slice(124, 136)
"""Where a header has the size of its file."""
_CHUNK = 1 << 20


def header(name: str, size: int) -> bytes:
    """What stands before a file.

    Raises
    ------
    ArchiveError
        Its name cannot be written.
    """
    member = tarfile.TarInfo(name)
    member.size = size
    try:
        return member.tobuf(tarfile.GNU_FORMAT, "utf-8", "strict")
    except ValueError:
        raise ArchiveError(f"the file name {name!r} cannot be written into an archive") from None


class Writer:
    """Writes files one behind the other.

    Parameters
    ----------
    stream : IO[bytes]
        That they go to.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._written = 0

    def begin(self, name: str, size: int) -> None:
        """Begin a file, whose content `write` takes."""
        self.write(header(name, size))

    def write(self, content: bytes) -> None:
        """Write a piece of a file."""
        self._stream.write(content)
        self._written += len(content)

    def end_file(self) -> None:
        """Fill up the last block of a file."""
        self.write(bytes(-self._written % _BLOCK))

    def end(self) -> None:
        """Say that nothing more comes."""
        self.write(bytes(2 * _BLOCK))
        self.write(bytes(-self._written % _RECORD))


class Reader:
    """Reads what a `Writer` has written, and nothing else.

    Parameters
    ----------
    stream : IO[bytes]
        That it comes from.
    where : str
        Names the archive in messages.
    """

    def __init__(self, stream: IO[bytes], where: str) -> None:
        self._stream = stream
        self._where = where
        self._read = 0
        self._ahead = b""

    def file(self, name: str, size: int) -> Iterator[bytes]:
        """The pieces of the next file, which has to be this one.

        Raises
        ------
        ArchiveError
            Another one stands there, or the archive ends before it does.
        """
        expected = header(name, size)
        if self._take(len(expected)) != expected:
            raise ArchiveError(f"{self._where}: has changed, or was not written by mlflow-ngraph, before {name!r}")
        left = size
        while left:
            chunk = self._take(min(left, _CHUNK))
            left -= len(chunk)
            yield chunk
        if any(self._take(-self._read % _BLOCK)):
            raise ArchiveError(f"{self._where}: has changed behind {name!r}")

    def small(self, name: str, limit: int) -> bytes | None:
        """The next file, if it is this one, whatever its size; None where another one stands there.

        Parameters
        ----------
        limit : int
            Bytes that it may have.

        Raises
        ------
        ArchiveError
            It is larger, or the archive ends before it does.
        """
        self._ahead = self._take(_BLOCK)
        self._read -= len(self._ahead)
        try:
            size = tarfile.nti(self._ahead[_SIZE])  # type: ignore[attr-defined]  # as tar files have numbers
        except tarfile.HeaderError:
            return None
        if size < 0 or self._ahead != header(name, size):
            return None
        if size > limit:
            raise ArchiveError(f"{self._where}: {name} has {size} bytes, and may have {limit}")
        return b"".join(self.file(name, size))

    def end(self) -> None:
        """Make sure that nothing more comes.

        Raises
        ------
        ArchiveError
            Something does, or the end is missing.
        """
        total = self._read + 2 * _BLOCK
        rest = self._take(total + -total % _RECORD - self._read)
        if any(rest) or self._stream.read(1):
            raise ArchiveError(
                f"{self._where}: has something behind its last file that was not written by mlflow-ngraph"
            )

    def _take(self, size: int) -> bytes:
        content, self._ahead = self._ahead[:size], self._ahead[size:]
        content += self._stream.read(size - len(content))
        if len(content) != size:
            raise ArchiveError(f"{self._where}: is cut off, after {self._read + len(content)} bytes")
        self._read += size
        return content
