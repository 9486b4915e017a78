"""Application: ASGI routes of the Open Inference Protocol, MLflow's ``/invocations``, metrics; admits requests.

Nothing here waits but by ``await``: bodies come in pieces, engines compute in threads of their own, and what takes long to
parse or to write is done in a thread beside.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, Router

from mlflow_ngraph.version import __version__
from mlflow_ngraph_serve import invocations
from mlflow_ngraph_serve.answers import Answer, as_json, refusal
from mlflow_ngraph_serve.protocol import EXTENSIONS, LENGTH_HEADER
from mlflow_ngraph_serve.refusal import Refusal

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from starlette.types import ASGIApp, Receive, Scope, Send

    from mlflow_ngraph_serve.batching import BatchAnswer
    from mlflow_ngraph_serve.connection import Connection
    from mlflow_ngraph_serve.crowd import Crowd
    from mlflow_ngraph_serve.protocol import InferenceRequest
    from mlflow_ngraph_serve.service import Service

T = TypeVar("T")
Endpoint = Callable[[Request], Awaitable[Response]]

SMALL = 64 << 10
"""Bytes of JSON that are parsed or written at once; more take so long that other requests would notice."""
HELD = 256 << 20
"""Bytes of questions that are queued or computed at the same time, or twice the largest body where that is more."""
_HELPERS = 2
_DIGITS = 12
_NOBODY = 499
"""The status for the log of a client that is gone."""
_SENT = frozenset({"application/json", "application/octet-stream"})
"""Types that a page of another origin cannot send without asking first."""
_LOCAL = re.compile(r"(localhost|127(\.[0-9]{1,3}){3}|\[::1\])?(:[0-9]*)?")
"""Names of this machine in the header Host. Only names can be led here by a page, not addresses."""
_ABSOLUTE = re.compile(r"https?://([^/]*)(/.*)?", re.IGNORECASE)
"""A target with the host, which every server has to take."""
_log = logging.getLogger(__name__)


class Application:
    """Answers requests with a service.

    Parameters
    ----------
    local : bool
        Answer only those who call this server by a name of this machine: other names may have been led here by a page.
    """

    def __init__(self, service: Service, crowd: Crowd, *, local: bool) -> None:
        self.service = service
        self._crowd, self._local = crowd, local
        self._helpers = ThreadPoolExecutor(_HELPERS, "parsing")
        self._running = 0

    def asgi(self, started: Callable[[], Awaitable[None]]) -> ASGIApp:
        """The ASGI application.

        Parameters
        ----------
        started : Callable[[], Awaitable[None]]
            Is begun when the web server listens; it is cancelled when that ends.
        """

        @asynccontextmanager
        async def lifespan(_: object) -> AsyncIterator[None]:
            beginning = asyncio.ensure_future(started())
            yield
            beginning.cancel()
            # Nobody waits for the answers that are still being written.
            self._helpers.shutdown(wait=False, cancel_futures=True)

        def get(path: str, endpoint: Endpoint) -> Route:
            return Route(path, _Address(self, ("GET", "HEAD"), endpoint))

        def post(path: str, endpoint: Endpoint) -> Route:
            return Route(path, _Address(self, ("POST",), endpoint))

        async def other(scope: Scope, receive: Receive, send: Send) -> None:
            if absolute := _ABSOLUTE.fullmatch(scope["path"]):
                headers = [header for header in scope["headers"] if header[0] != b"host"]
                headers.append((b"host", absolute[1].encode()))
                await router({**scope, "path": absolute[2] or "/", "headers": headers}, receive, send)
            else:
                await _Address(self, (), self._nothing)(scope, receive, send)

        router = Router(
            [
                post("/v2/models/{name}/infer", self._infer),
                post("/v2/models/{name}/versions/{version}/infer", self._infer),
                post("/invocations", self._invoke),
                get("/", self._index),
                get("/ping", self._ready),
                get("/v2", self._server),
                get("/v2/models", self._models),
                get("/v2/health/live", self._live),
                get("/v2/health/ready", self._ready),
                get("/v2/models/{name}", self._model),
                get("/v2/models/{name}/ready", self._model_ready),
                get("/v2/models/{name}/versions/{version}", self._model),
                get("/v2/models/{name}/versions/{version}/ready", self._model_ready),
                get("/metrics", self._metrics),
            ],
            redirect_slashes=False,
            default=other,
            lifespan=lifespan,
        )
        return router

    async def answer(self, request: Request, methods: Sequence[str], endpoint: Endpoint) -> Response:
        """Answer a request whatever happens: refusals and failures are answers, too."""
        try:
            host = request.headers.get("host", "").lower()
            if self._local and not _LOCAL.fullmatch(host):
                raise Refusal(421, "foreign", "this server is called localhost or 127.0.0.1", close=True)
            if methods and request.method not in methods:
                return self._no_route(405, "this address takes another method", {"Allow": ", ".join(methods)})
            return await endpoint(request)
        except Refusal as error:
            # Its frames have the body and all that was read of it, and a future in one of them has the error.
            error.__traceback__ = None
            self.service.metrics.refused(error.reason)
            if error.reason in ("queue_full", "latency"):
                await self.service.pace.refuse()
            return refusal(error)
        except Exception:  # noqa: BLE001 - a client gets an answer whatever happens
            self.service.metrics.refused("internal")
            _log.exception("a request failed")
            return refusal(
                Refusal(500, "internal", "something went wrong here; the server's log says what", close=True)
            )

    async def _nothing(self, _: Request) -> Response:
        return self._no_route(404, "there is nothing here: GET / lists what there is", {})

    def _no_route(self, status: int, said: str, headers: Mapping[str, str]) -> Response:
        self.service.metrics.refused("unknown")
        # The body of such a request is not read.
        return as_json({"error": said}, status, {**headers, "Connection": "close"})

    async def _server(self, _: Request) -> Response:
        return as_json({"name": "mlflow-ngraph", "version": __version__, "extensions": list(EXTENSIONS)})

    async def _index(self, request: Request) -> Response:
        model = f"/v2/models/{self.service.interface.name}"
        addresses = {"model": model, "infer": f"{model}/infer", "invocations": "/invocations", "metrics": "/metrics"}
        return as_json(
            {"name": "mlflow-ngraph", "version": __version__, "models": self._served(), "addresses": addresses}
        )

    async def _models(self, _: Request) -> Response:
        return as_json({"models": self._served()})

    def _served(self) -> list[dict[str, Any]]:
        interface = self.service.interface
        return [{"name": interface.name, "version": interface.version, "ready": self.service.ready}]

    async def _live(self, _: Request) -> Response:
        live = not self.service.broken
        return as_json({"live": live}, 200 if live else 503)

    async def _ready(self, _: Request) -> Response:
        ready = self.service.ready
        return as_json({"ready": ready}, 200 if ready else 503)

    async def _model(self, request: Request) -> Response:
        self._named(request)
        return as_json(self.service.metadata)

    async def _model_ready(self, request: Request) -> Response:
        self._named(request)
        ready = self.service.ready
        return as_json({"name": self.service.interface.name, "ready": ready}, 200 if ready else 503)

    async def _metrics(self, _: Request) -> Response:
        text, kind = self.service.metrics.text()
        return Response(text, headers={"Content-Type": kind})

    async def _infer(self, request: Request) -> Response:
        self._named(request)
        length, interface = request.headers.get(LENGTH_HEADER), self.service.interface
        return await self._computed(request, length, lambda body: interface.read(body, length), interface.write)

    async def _invoke(self, request: Request) -> Response:
        """Answer as MLflow's own scoring server does."""
        read = partial(invocations.read, self.service.interface)
        return await self._computed(request, None, read, invocations.write)

    async def _computed(
        self,
        request: Request,
        length: str | None,
        read: Callable[[bytearray], InferenceRequest],
        write: Callable[[InferenceRequest, Mapping[str, NDArray[Any]]], tuple[bytes, dict[str, str]]],
    ) -> Response:
        """Answer an inference.

        Parameters
        ----------
        length : str | None
            Length of the JSON in the body, from the request's header.
        """
        connection: Connection = request.scope["state"]["connection"]
        start, whole = connection.begun, not connection.cycle.more_body
        self._admit(request, connection)
        try:
            body = await self._read(request, start, whole=whole)
        except ClientDisconnect:
            return Response(status_code=_NOBODY)
        # How fast a client sends is its own affair.
        came = start if whole else time.monotonic()
        self._take_place(len(body), came)
        place = self.service.pace.enter()
        seconds: float | None = None
        try:
            question = await self._helped(_json_bytes(length, body) > SMALL, partial(read, body), start)
            answer = await self._answer(question, start)
            json_bytes = sum(answer.outputs[name].nbytes for name, as_bytes in question.outputs if not as_bytes)
            written = partial(write, question, answer.outputs)
            content, headers = await self._helped(json_bytes > SMALL, written, start)
            seconds = time.monotonic() - came
            self._in_time(self.service.pace.in_time(seconds))
        except BaseException:
            self._running -= 1
            self.service.pace.leave(place, seconds)
            raise
        finally:
            # What the engine was given may still be a part of it.
            self._crowd.computing(-len(body))

        def left(whole: bool) -> None:
            self._running -= 1
            self.service.pace.leave(place, time.monotonic() - came if whole else None)
            if whole:
                self.service.metrics.answered(time.monotonic() - start, answer.queued_s)

        return Answer(content, headers, connection, left)

    def _named(self, request: Request) -> None:
        """Refuse other models, and other versions of this one."""
        interface = self.service.interface
        if request.path_params["name"] != interface.name:
            raise Refusal(404, "unknown", f"there is no such model: this is the server of {interface.name!r}")
        if request.path_params.get("version", interface.version) != interface.version:
            raise Refusal(404, "unknown", f"there is no such version: {interface.name!r} has {interface.version}")

    def _admit(self, request: Request, connection: Connection) -> None:
        """Refuse a request before its body is read."""
        service, headers = self.service, request.headers
        if not service.ready:
            raise Refusal(503, "not_ready", service.broken or "the engine is not ready", retry_after_s=1, close=True)
        if connection.spare:
            raise Refusal(503, "crowded", "too many connections", retry_after_s=1, close=True)
        if "transfer-encoding" in headers and "content-length" in headers:
            raise Refusal(400, "malformed", "a body has a length or comes in chunks, not both", close=True)
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise Refusal(415, "malformed", "bodies must not be compressed", close=True)
        if len(set(headers.getlist(LENGTH_HEADER))) > 1:
            raise Refusal(400, "malformed", f"{LENGTH_HEADER} has two values", close=True)
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in _SENT and LENGTH_HEADER not in headers:
            raise Refusal(415, "malformed", f"Content-Type must be {' or '.join(sorted(_SENT))}", close=True)

    @staticmethod
    def _in_time(kept: bool) -> None:
        """Refuse a request for which the promised latency is not kept."""
        if not kept:
            raise Refusal(503, "latency", "it cannot be answered within the latency bound", retry_after_s=1)

    def _take_place(self, size: int, came: float) -> None:
        """Refuse a question that has come whole where there is no place for it."""
        service, crowd = self.service, self._crowd
        if self._running >= service.max_requests or crowd.computed + size > max(HELD, 2 * service.max_body_bytes):
            raise Refusal(503, "queue_full", "too many requests at the same time", retry_after_s=1)
        self._in_time(service.admits(came))
        self._running += 1
        crowd.computing(size)

    async def _read(self, request: Request, start: float, *, whole: bool) -> bytearray:
        if whole:
            return await self._received(request)
        try:
            return await asyncio.wait_for(self._received(request), self._left(start))
        except asyncio.TimeoutError:
            limit = self.service.limits.timeout_s
            raise Refusal(408, "slow", f"the body did not come within {limit:g} s", close=True) from None

    async def _received(self, request: Request) -> bytearray:
        limit = self.service.max_body_bytes
        too_large = Refusal(413, "too_large", f"the body is larger than {limit} bytes", close=True)
        declared = request.headers.get("content-length", "0")
        # What is no number has been refused by the web server.
        if declared.isdigit() and int(declared) > limit:
            raise too_large
        body = bytearray()
        async for piece in request.stream():
            if len(body) + len(piece) > limit:
                raise too_large
            body += piece
        return body

    async def _answer(self, question: InferenceRequest, start: float) -> BatchAnswer:
        future = asyncio.wrap_future(self.service.submit(question))
        late = False

        def give_up() -> None:
            nonlocal late
            # It leaves the queue if it still waits there.
            late = future.cancel()

        # Waiting with a timeout would take two more turns of the event loop.
        timer = asyncio.get_running_loop().call_later(self._left(start), give_up)
        try:
            return await future
        except asyncio.CancelledError:
            if late:
                raise self._too_late() from None
            raise
        finally:
            timer.cancel()

    async def _helped(self, long: bool, function: Callable[[], T], start: float) -> T:
        """Call a function, in a helper thread where it may take long.

        The timeout of the request holds here too: a server that ends waits that long for its requests, and no longer.
        """
        if not long:
            return function()
        helped = asyncio.get_running_loop().run_in_executor(self._helpers, function)
        try:
            return await asyncio.wait_for(helped, self._left(start))
        except asyncio.TimeoutError:
            raise self._too_late() from None
        finally:
            self._crowd.grown()

    def _too_late(self) -> Refusal:
        limit = self.service.limits.timeout_s
        return Refusal(504, "timeout", f"there was no answer within {limit:g} s")

    def _left(self, start: float) -> float:
        """Remaining seconds of a request."""
        return max(0.0, start + self.service.limits.timeout_s - time.monotonic())


@dataclass(frozen=True)
class _Address:
    """ASGI application of an address. A function would be wrapped by the router, which takes time for each request."""

    application: Application
    methods: tuple[str, ...]
    """Empty: all."""
    endpoint: Endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self.application.answer(Request(scope, receive), self.methods, self.endpoint)
        await response(scope, receive, send)


def _json_bytes(length: str | None, body: bytearray) -> int:
    """Length of the JSON in a body; an invalid header counts as 0, which is refused at once."""
    if length is None:
        return len(body)
    return int(length) if length.isascii() and length.isdigit() and len(length) < _DIGITS else 0
