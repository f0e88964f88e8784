"""A trained model as an HTTP server: requests and answers in JSON, limits, and a page to try it."""

import asyncio
import json
import os
import resource
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from uvicorn.protocols.http.h11_impl import H11Protocol

import fairseq_plugins
from fairseq_plugins.evaluation.language_model import Context, TrainedLanguageModel
from fairseq_plugins.evaluation.translation import EXTRA_PIECES, STEP, Translator
from fairseq_plugins.options import UserError
from fairseq_plugins.serving.batching import Batcher, Limits, TooManyWaiting

PAGE = Path(__file__).with_name("page.html")

BEAM = 5
"""Beam of a request that gives none."""

READ_TO_THE_END = 16
"""A body up to this many times the limit is read to its end, so that the client sees the answer."""

SECONDS_TO_READ = 0.5
"""When the server ends, it still reads requests on accepted connections for this time."""


class _LinesRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    lines: List[str] = Field(min_length=1, description="raw text")


class TranslateRequest(_LinesRequest):
    """Sentences or articles, and how they are translated."""

    beam: int = Field(BEAM, ge=1, le=50, description="beam size")
    nbest: int = Field(1, ge=1, le=50, description="translations of each line, at most beam")


class ScoreRequest(_LinesRequest):
    """Lines of text, and where state is reset."""

    context: Context = Field("line", description="state is reset at every line, after every blank line, or never")


class GenerateRequest(_LinesRequest):
    """Beginnings of lines, and how they are continued."""

    num: int = Field(1, ge=1, le=100, description="texts for each line")
    seed: int = Field(1, ge=0, lt=2**63, description="equal seeds draw equal texts")
    temperature: float = Field(1.0, gt=0, le=100, description="divides log-probabilities")
    top_k: Optional[int] = Field(None, ge=1, le=10**9, description="draw from the most probable words")
    top_p: Optional[float] = Field(
        None, gt=0, le=1, description="draw from the fewest words whose probabilities sum up to this"
    )
    max_length: int = Field(100, ge=1, le=1000, description="tokens that are written at most")


class Hypothesis(BaseModel):
    """A translation; score and alignment as ``fairseq-plugins translate --json`` gives them."""

    text: str
    score: float
    tokens: List[str]
    alignment: Optional[List[Tuple[int, int]]]


class Translation(BaseModel):
    """A line, the tokens that the model read, and its translations, the best first."""

    source: str
    tokens: List[str]
    hypotheses: List[Hypothesis]


class Score(BaseModel):
    """A line, its log-probability, and the surprisal of its tokens, both in nats."""

    text: str
    log_prob: float
    tokens: List[str]
    nats: List[float]
    unknown: List[bool]


class Continuation(BaseModel):
    """A beginning with its continuation, and the log-probabilities of the continuation's tokens in nats."""

    text: str
    log_prob: float
    tokens: List[str]
    log_probs: List[float]


class Translations(BaseModel):
    """A translation of each line."""

    translations: List[Translation]


class Scores(BaseModel):
    """A score of each line."""

    scores: List[Score]


class Continuations(BaseModel):
    """The texts of each line."""

    continuations: List[List[Continuation]]


class Health(BaseModel):
    """The model that answers."""

    model: str
    kind: str
    version: str


class Error(BaseModel):
    """Why there is no answer."""

    error: str


REFUSALS: Dict[Union[int, str], Dict[str, Any]] = {
    status: {"model": Error, "description": description}
    for status, description in {
        400: "the body is no JSON",
        408: "the body did not come in time",
        413: "the body is too large",
        422: "a value does not fit",
        500: "a fault of the server",
        503: "too many requests wait; try again later",
        504: "the answer was not ready in time",
    }.items()
}


def _error(status: int, message: str, **headers: str) -> Response:
    """An answer with an error, in ASCII, because what a client sent may have no form in UTF-8."""
    content = json.dumps({"error": message[:500]})
    return Response(
        content, status, {name.replace("_", "-"): value for name, value in headers.items()}, "application/json"
    )


Model = Union[TrainedLanguageModel, Translator]


class ModelServer:
    """The application of one model.

    Args:
        model: what :func:`fairseq_plugins.load` returned.
        name: of the model, for clients.
        limits: of requests.

    Attributes:
        app: for an ASGI server.
        name: of the model.
        kind: of the model, "translator" or "language model".
    """

    def __init__(self, model: Model, *, name: str, limits: Limits):
        self.limits = limits
        self.batcher = Batcher(self._work, max_batch=limits.batch, max_waiting=limits.waiting)
        self._model = model
        self.name = name
        self.kind = "translator" if isinstance(model, Translator) else "language model"
        api = FastAPI(title=f"{name} ({self.kind})", version=fairseq_plugins.__version__, redoc_url=None)
        self._add_pages(api)
        self._add_work(api)
        _add_refusals(api, limits)
        self.app = _Limited(api, limits)

    def _add_pages(self, api: FastAPI) -> None:
        """The page and the state of the server, which need no model."""
        health = Health(model=self.name, kind=self.kind, version=fairseq_plugins.__version__)

        @api.get("/health")
        async def get_health() -> Health:
            return health

        @api.get("/", include_in_schema=False)
        async def get_page() -> HTMLResponse:
            allowed = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
            return HTMLResponse(PAGE.read_bytes(), headers={"Content-Security-Policy": allowed})

    def _add_work(self, api: FastAPI) -> None:
        """The requests that the model answers."""
        if isinstance(self._model, Translator):

            @api.post("/translate", responses=REFUSALS)
            async def translate(request: TranslateRequest) -> Translations:
                if request.nbest > request.beam:
                    raise UserError(f"nbest {request.nbest} of a beam of {request.beam}: give a larger beam")
                # an estimate: a line rarely has more subwords than characters
                longest = (len(line) + EXTRA_PIECES + STEP for line in request.lines)
                self._check_tokens(request.beam * sum(longest), "beam")
                return Translations(translations=await self._answers(request))

        else:

            @api.post("/score", responses=REFUSALS)
            async def score(request: ScoreRequest) -> Scores:
                return Scores(scores=await self._answers(request, alone=request.context != "line"))

            @api.post("/generate", responses=REFUSALS)
            async def generate(request: GenerateRequest) -> Continuations:
                self._check_tokens(len(request.lines) * request.num * request.max_length, "num and max_length")
                return Continuations(continuations=await self._answers(request, alone=True))

    def _check_tokens(self, num_tokens: int, names: str) -> None:
        """Refuse a request that may be long, because nothing interrupts it and others would wait for it."""
        if num_tokens > self.limits.tokens:
            raise UserError(
                f"lines, {names} ask for up to {num_tokens:,} tokens: a request has up to {self.limits.tokens:,}"
            )

    async def _answers(self, request: _LinesRequest, *, alone: bool = False) -> List[Any]:
        limits = self.limits
        if len(request.lines) > limits.lines:
            raise UserError(f"{len(request.lines):,} lines: a request has up to {limits.lines:,}")
        for number, line in enumerate(request.lines, start=1):
            if len(line) > limits.characters:
                raise UserError(f"line {number} has {len(line):,} characters: give up to {limits.characters:,}")
            if "\n" in line:
                raise UserError(f"line {number} has a line break: give its lines one by one")
            if any("\ud800" <= character <= "\udfff" for character in line):
                raise UserError(f"line {number} has half a character, a lone surrogate: give text in Unicode")
        options = request.model_copy(update={"lines": []})
        return await asyncio.wrap_future(self.batcher.submit(request.lines, options, alone=alone))

    def _work(self, lines: Sequence[str], request: _LinesRequest) -> List[Any]:
        options = request.model_dump(exclude={"lines"})
        if isinstance(self._model, Translator):
            # a larger beam has smaller batches, so that both take the same memory
            batch_size = max(1, self.limits.batch * BEAM // max(BEAM, options["beam"]))
            found = self._model.translate(lines, batch_size=batch_size, **options)
            return [Translation(**one.figures()) for one in found]
        if isinstance(request, GenerateRequest):
            return [
                [Continuation(**one.figures()) for one in self._model.continuations(line, **options)] for line in lines
            ]
        return [Score(**one.figures()) for one in self._model.score(lines, **options)]


def _add_refusals(api: FastAPI, limits: Limits) -> None:
    """Answer errors in JSON. The answer to an unknown address lists the addresses of ``api``."""
    paths = [f"{method} {path}" for path, one in api.openapi()["paths"].items() for method in map(str.upper, one)]

    @api.exception_handler(UserError)
    async def refuse(_: Request, error: UserError) -> Response:
        return _error(422, str(error))

    @api.exception_handler(TooManyWaiting)
    async def put_off(_: Request, error: TooManyWaiting) -> Response:
        return _error(503, f"requests that wait: {limits.waiting:,}; try again later", Retry_After="1")

    @api.exception_handler(RequestValidationError)
    async def refuse_values(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            return _error(400, "the body is no JSON")
        place = ".".join(map(str, first["loc"][1:])) or "the body, which is sent as application/json"
        return _error(422, f"{place}: {first['msg']}")

    @api.exception_handler(HTTPException)
    async def refuse_request(request: Request, error: HTTPException) -> Response:
        if error.status_code in (404, 405):
            return _error(error.status_code, f"this server has {', '.join(paths)}, GET / and GET /docs")
        reason = "the body cannot be read as JSON in UTF-8" if error.status_code == 400 else error.detail
        return _error(error.status_code, reason)

    @api.exception_handler(Exception)
    async def fail(_: Request, error: Exception) -> Response:
        return _error(500, "a fault of the server, which its log describes")


class _Limited:
    """An application behind limits on the size of a body and the time of a request."""

    def __init__(self, app: Any, limits: Limits):
        self._app, self._limits = app, limits

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}  # uvicorn leaves out the body of the answer
        end = asyncio.get_running_loop().time() + self._limits.seconds
        try:
            async with asyncio.timeout_at(end):
                body = await self._read(receive)
        except TimeoutError:
            refusal = _error(408, f"the body did not come within {self._limits.seconds:g} s", Connection="close")
            return await refusal(scope, receive, send)
        if body is None:
            refusal = _error(413, f"the body has more than {self._limits.body:,} bytes", Connection="close")
            return await refusal(scope, receive, send)
        messages = [{"type": "http.request", "body": body, "more_body": False}]
        left = asyncio.ensure_future(receive())  # comes when the client leaves, or has its answer
        has_begun = False

        async def receive_body() -> Any:
            return messages.pop() if messages else await asyncio.shield(left)

        async def send_answer(message: Any) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        answer = asyncio.ensure_future(self._app(scope, receive_body, send_answer))
        try:
            async with asyncio.timeout_at(end):
                await asyncio.wait({answer, left}, return_when=asyncio.FIRST_COMPLETED)
                if answer.done() or has_begun:
                    await answer
        except TimeoutError:
            answer.cancel()
            refusal = _error(504, f"there was no answer within {self._limits.seconds:g} s: send less at a time")
            await refusal(scope, receive, send)
        finally:  # the request of a client that has left is not worked on
            answer.cancel()
            left.cancel()

    async def _read(self, receive: Any) -> Optional[bytes]:
        """The body, or None if it is too large. One above READ_TO_THE_END times the limit is not read to its end."""
        body, size, more = b"", 0, True
        while more and size <= READ_TO_THE_END * self._limits.body:
            message = await receive()
            part = message.get("body", b"")
            size += len(part)
            body = body + part if size <= self._limits.body else b""
            more = message.get("more_body", False)
        return body if size <= self._limits.body else None


class _Connection(H11Protocol):
    """A connection that is cut when it has had no request for a while, or its client has not read answers."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch(before=self)

    def _watch(self, before: Any) -> None:
        """Abort the connection if nothing has moved since the last look, which saw the request ``before``."""
        if self not in self.connections:
            return
        idle = self.cycle is None or self.cycle.response_complete
        waits = idle or self.flow.write_paused  # for a request, or for the client to read an answer
        if waits and self.cycle is before:
            self.transport.abort()
        else:
            self.loop.call_later(self.config.timeout_keep_alive, self._watch, self.cycle if waits else self)


class _Runner(uvicorn.Server):
    """Reads what has been sent before it closes connections that have no request yet."""

    async def shutdown(self, sockets: Optional[List[socket.socket]] = None) -> None:
        for server in self.servers:
            server.close()
        await asyncio.sleep(SECONDS_TO_READ)
        await super().shutdown(sockets)


def listen(host: str, port: int) -> socket.socket:
    """A socket that accepts connections; port 0 is any free one.

    Raises:
        UserError: if there is no such address, or it is in use.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.create_server(address[:2], family=family, backlog=2048)
        # Connections inherit it. Otherwise the end of each answer waits 40 ms for an acknowledgement of its beginning.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except (OSError, UnicodeError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"--host {host} --port {port}: {reason}; give an address of this machine that is free"
        ) from error


def make_runner(server: ModelServer) -> uvicorn.Server:
    """A runner of the application on sockets that listen."""
    config = uvicorn.Config(
        server.app,
        http=_Connection,
        loop="asyncio",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=server.limits.seconds,
        timeout_graceful_shutdown=server.limits.seconds,
    )
    return _Runner(config)


def serve(server: ModelServer, listening: socket.socket) -> None:
    """Answer requests until SIGTERM or SIGINT, then answer pending ones and end."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # not every system lets the limit be raised
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each connection is a file
    runner = make_runner(server)
    for number in (signal.SIGTERM, signal.SIGINT):  # uvicorn raises them again at its end, for earlier handlers
        signal.signal(number, runner.handle_exit)
    runner.run(sockets=[listening])
    if server.batcher.is_working:  # on a request whose time is up; nothing interrupts it
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
