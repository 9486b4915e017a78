"""Artifacts that a tracking server passes on, or whose addresses in the store behind it the server signs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import quote

from mlflow_ngraph.tracking import connection
from mlflow_ngraph.tracking.file_part import CHUNK, ArtifactStore, CutError, FilePart, RefusedError

if TYPE_CHECKING:
    import requests

    Get = Callable[[str, Mapping[str, str]], requests.Response]
    """Asks for a path below the base of a store, with headers, and streams the answer."""

_TIMEOUT_S = 30.0
_REASON_BYTES = 1 << 16
"""Of what a server says instead of a file."""
_TRANSIENT = (408, 425, 429, 500, 502, 503, 504)


class HttpStore(ArtifactStore):
    """A server that passes artifacts on, or says where they are.

    Parameters
    ----------
    get : Get
        Asks it for a file.
    sign : Get, optional
        Asks it for an address of the same file in the store behind it, for servers that pass nothing on.
    """

    def __init__(self, get: Get, sign: Get | None = None) -> None:
        self._get, self._sign = get, sign
        self._signs = False
        """Whether it has said that it passes nothing on."""

    def fetch(self, path: str, part: FilePart, sized: Callable[[int], None] = lambda size: None) -> None:
        # No compression on the way: bytes are counted, and asked for by their place.
        headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={part.size}-"} if part.size else {})}
        with _cuts(), self._answer(f"/{quote(path)}", headers) as answer:
            if answer.status_code == 416:  # the part is longer than the file
                part.restart()
                raise CutError("it has fewer bytes than came before")
            if answer.status_code in _TRANSIENT:
                raise CutError(f"the server answers {answer.status_code} {answer.reason}")
            if not answer.ok:
                raise RefusedError(f"the server answers {answer.status_code} {answer.reason}")
            if part.size and not _continues(answer, part.size):
                part.restart()
            size = _length(answer, part.size)
            if size is not None:
                sized(size)
            part.extend(answer.iter_content(CHUNK))
            if size is not None and part.size < size:
                raise CutError(f"the connection ended after {part.size} of {size} bytes")

    def _answer(self, path: str, headers: Mapping[str, str]) -> requests.Response:
        if not self._signs:
            answer = self._get(path, headers)
            if self._sign is None or not _passes_nothing_on(answer):
                return answer
            answer.close()
            self._signs = True
        assert self._sign is not None
        return _at_signed_address(self._sign(path, {}), headers)


def timeout() -> float:
    """Seconds for which a server may be silent, as MLflow is configured."""
    return configured("MLFLOW_HTTP_REQUEST_TIMEOUT", _TIMEOUT_S)


def configured(name: str, default: float) -> float:
    """A number from the environment, or another one where it has none."""
    try:
        return float(os.environ[name])
    except (KeyError, ValueError):
        return default


@contextmanager
def _cuts() -> Iterator[None]:
    """Whatever the network does is a cut connection."""
    from requests import RequestException
    from urllib3.exceptions import HTTPError

    try:
        yield
    except (RequestException, HTTPError) as error:
        raise CutError(connection.one_line(error)) from None
    except Exception as error:
        # MLflow's client has a kind of its own for all of them; it need not have been imported.
        if not type(error).__module__.startswith("mlflow."):
            raise
        raise CutError(connection.one_line(error)) from None


def _passes_nothing_on(answer: requests.Response) -> bool:
    """Whether a server refuses because files are to be read where they lie, as MLflow's does from 3.18 on if it is told to."""
    if answer.status_code != 403:
        return False
    try:
        said = json.loads(next(answer.iter_content(_REASON_BYTES), b""))
    except ValueError:
        return False
    return isinstance(said, dict) and said.get("artifacts_presigned_only") is True


def _at_signed_address(told: requests.Response, headers: Mapping[str, str]) -> requests.Response:
    """What lies where a server says; its own answer where it does not say.

    The login is for the server alone: nothing of it goes there.
    """
    import requests

    if not told.ok:
        return told
    with told:
        try:
            signed = json.loads(next(told.iter_content(_REASON_BYTES), b""))
            address, needed = str(signed["url"]), {str(name): str(value) for name, value in signed["headers"].items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            raise RefusedError("the server does not say where it lies") from None
    unchecked = os.environ.get("MLFLOW_S3_IGNORE_TLS", "").lower() in ("true", "1")
    try:
        return requests.get(
            address, headers={**needed, **headers}, stream=True, timeout=timeout(), verify=not unchecked
        )
    except requests.RequestException as error:
        # Its message has the address, and whoever has that may read.
        raise CutError(f"the store of the server: {type(error).__name__}") from None


def _continues(answer: requests.Response, offset: int) -> bool:
    """Whether an answer begins where it was asked to."""
    return answer.status_code == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {offset}-")


def _length(answer: requests.Response, offset: int) -> int | None:
    """Bytes of the whole file; None where the server does not tell."""
    length = answer.headers.get("Content-Length", "")
    encoded = answer.headers.get("Content-Encoding", "identity") != "identity"
    return offset + int(length) if length.isdigit() and not encoded else None
