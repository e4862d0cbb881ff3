"""The addresses of the service, and the checks that a request must pass. Every refusal is one sentence."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hmac
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import FileResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from starlette.exceptions import HTTPException as StarletteException
from starlette.requests import ClientDisconnect

from dpr.core.errors import DprError, InputError, first_line
from dpr.core.logs import get_logger
from dpr.core.version import __version__
from dpr.retrieval.hits import EXCERPT, Hits, QuestionWords
from dpr.serving.engine import Engine, ServedIndex
from dpr.serving.settings import ServeSettings, is_loopback

logger = get_logger(__name__)
PAGE = Path(__file__).parent / "page"
OPENAI = "/v1/"
"""Prefix of the addresses that are compatible with OpenAI's API."""
HEALTH = ("/healthz", "/readyz")
"""Addresses that always answer, without a token."""
_STATE = (*HEALTH, "/metrics")  # an overloaded service must be able to say so
_PATHS = ("/", "/search", "/v1/embeddings", "/v1/models", "/info", *_STATE)
LIMITS = {
    "requests": 512,
    "bytes": 8 * 2**20,
    "texts": 2048,
    "characters": 8192,
    "passages per question": 1000,
    "passages": 100_000,
}
"""Limits: requests at work or waiting at a time; bytes of a body; texts of a request, and characters of each;
passages of an answer, which must fit in memory."""
_EXPLAINED = 10  # an explained passage takes as long as this many others
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
}


Parsed = TypeVar("Parsed", bound=BaseModel)


def _not_empty(text: str) -> str:
    if not text.strip():
        raise ValueError("a text is empty")
    return text


Text = Annotated[str, Field(max_length=LIMITS["characters"]), AfterValidator(_not_empty)]
Texts = Annotated[list[Text], Field(min_length=1, max_length=LIMITS["texts"])]
Value = str | bool | int | float


class Filter(BaseModel):
    """Restriction of a search to passages with these ids, and whose fields match, as in ``dpr.Retriever.search``."""

    model_config = ConfigDict(strict=True, extra="forbid")

    ids: list[str] | None = Field(None, min_length=1, max_length=10_000)
    metadata: dict[str, Value | list[Value] | dict[str, Any]] | None = Field(None, min_length=1)

    @model_validator(mode="after")
    def says_something(self) -> Filter:
        """Refuses an empty filter, which would let every passage through."""
        if self.ids is None and self.metadata is None:
            raise ValueError("names neither ids nor metadata")
        return self


class SearchBody(BaseModel):
    """Questions, and how to search."""

    model_config = ConfigDict(strict=True, extra="forbid")

    queries: Texts
    index: str | None = None
    k: int = Field(10, ge=1, le=LIMITS["passages per question"])
    filter: Filter | None = None
    texts: bool = True
    explain: bool = False


def _only_texts(value: Any) -> Any:
    if isinstance(value, list) and any(not isinstance(item, str) for item in value):
        said = "token numbers are those of one tokenizer, so send the texts themselves"
        raise ValueError(f"holds something else than texts; {said}")
    return [value] if isinstance(value, str) else value


class EmbeddingsBody(BaseModel):
    """Request of OpenAI's clients, with ``input_type`` in addition."""

    model_config = ConfigDict(strict=True)

    input: Annotated[Texts, BeforeValidator(_only_texts)]
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = Field(None, ge=1)
    input_type: str | None = None


def make_app(
    settings: ServeSettings,
    opened: Callable[[], Iterator[ServedIndex]],
    *,
    token: str | None,
) -> tuple[FastAPI, Engine]:
    """Returns the application and the engine that answers its requests.

    Args:
        opened: makes the indexes, once the application has started.
        token: the token that requests must carry; None = none. Health and the page's own files hold no
            secrets and need no token.
    """
    registry = CollectorRegistry()
    count = Counter("dpr_requests", "Answers by path and status.", ["path", "status"], registry=registry)
    about = "Time of a stage of a batch; queue is one request's."
    stages = Histogram("dpr_stage_seconds", about, ["stage"], buckets=_SECONDS, registry=registry)
    waiting = Gauge("dpr_requests_waiting", "Requests that no batch has taken yet.", registry=registry)
    engine = Engine(opened, lambda stage, seconds: stages.labels(stage).observe(seconds))
    waiting.set_function(engine.num_waiting)
    num_requests = 0  # at work or waiting

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        engine.start()
        yield

    app = FastAPI(lifespan=lifespan, openapi_url=None)
    app.mount("/page", StaticFiles(directory=PAGE), name="page")

    @app.middleware("http")
    async def guard(request: Request, go_on: Callable[[Request], Any]) -> Response:
        nonlocal num_requests
        path = request.scope["path"]
        is_counted = path not in _STATE
        num_requests += is_counted
        try:
            if is_counted and num_requests > LIMITS["requests"]:
                said = f"{LIMITS['requests']} requests are at work or waiting; try again later"
                raise HTTPException(429, said, headers={"Retry-After": "1"})
            _check_origin(request, settings, token)
            response: Response = await go_on(request)
        except HTTPException as refused:
            response = _refusal(request, refused.status_code, refused.detail, refused.headers)
        except Exception:
            logger.exception("a request failed")
            said = "the service failed on this request; its log has the reason"
            response = _refusal(request, 500, said)
        finally:
            num_requests -= is_counted
        response.headers.update(_HEADERS)
        # All unknown paths share one label, so that nobody can fill the memory with names.
        count.labels(path if path in _PATHS else "other", str(response.status_code)).inc()
        return response

    @app.exception_handler(StarletteException)
    async def refused(request: Request, error: StarletteException) -> Response:
        known = {
            "Not Found": f"there is nothing at {request.scope['path'][:200]}",
            "Method Not Allowed": f"{request.method} is not allowed here",
        }
        return _refusal(request, error.status_code, known.get(error.detail, error.detail), error.headers)

    @app.exception_handler(ValidationError)
    async def invalid(request: Request, error: ValidationError) -> Response:
        return _refusal(request, 422, sentence(error.errors()))

    async def changed(request: Request, error: Exception) -> Response:
        logger.error("the files of an index are not what they were: %s", error)
        what = f"{error.file}: {error.found}" if isinstance(error, InputError) else first_line(error)
        said = f"the files of the index are not what they were ({what}); restart the service"
        return _refusal(request, 500, said)

    app.add_exception_handler(DprError, changed)
    app.add_exception_handler(OSError, changed)

    async def read(request: Request, kind: type[Parsed]) -> Parsed:
        body = bytearray()
        close = {"Connection": "close"}  # the rest of the body, still arriving, is not a request
        try:
            async with asyncio.timeout(settings.timeout):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > LIMITS["bytes"]:
                        said = f"the body is larger than {LIMITS['bytes']} bytes; send fewer texts at a time"
                        raise HTTPException(413, said, headers=close)
        except (TimeoutError, ClientDisconnect):
            said = f"the body did not arrive within {settings.timeout:g} s"
            raise HTTPException(408, said, headers=close) from None
        return kind.model_validate_json(bytes(body))

    def index_of(name: str | None) -> ServedIndex:
        if not engine.indexes:
            raise HTTPException(503, "the indexes are being opened", headers={"Retry-After": "2"})
        for index in engine.indexes:
            if name in (None, index.name, f"{index.info['run']}:{index.info['mode']}"):
                return index
        known = ", ".join(sorted(index.name for index in engine.indexes))
        raise HTTPException(404, f"there is no index {str(name)[:200]!r}; /info lists {known}")

    async def arrived(answer: Future[bytes]) -> Response:
        try:
            body = await asyncio.wait_for(asyncio.wrap_future(answer), settings.timeout)
        except TimeoutError:
            said = f"there was no answer within {settings.timeout:g} s"
            raise HTTPException(503, said, headers={"Retry-After": "1"}) from None
        return Response(body, media_type="application/json")

    @app.post("/search")
    async def search(request: Request) -> Response:
        """Returns the best passages of each question."""
        body = await read(request, SearchBody)
        index = index_of(body.index)
        count = len(body.queries) * body.k * (_EXPLAINED if body.explain else 1)
        if count > LIMITS["passages"]:
            counted = f", where each explained one counts as {_EXPLAINED}" if body.explain else ""
            said = f"{count} passages in all{counted}, expected at most {LIMITS['passages']}"
            raise HTTPException(422, said)
        wanted = body.filter.model_dump(exclude_none=True) if body.filter else {}
        texts = body.texts or body.explain

        def work(questions: list[str]) -> list[Hits]:
            return index.search(questions, body.k, wanted, texts=texts, observe=engine.observe)

        def shape(found: list[Hits]) -> dict[str, Any]:
            rows = [_listed(hits, explain=body.explain, texts=body.texts) for hits in found]
            unanswered = [hits.seems_unanswered for hits in found]
            return {"index": index.name, "results": rows, "seems_unanswered": unanswered}

        # Requests for the same index, number of passages and filter share one pass over the index.
        alike = index.name, body.k, str(wanted), texts
        return await arrived(engine.ask(alike, body.queries, work, shape))

    @app.post("/v1/embeddings")
    async def embeddings(request: Request) -> Response:
        """Returns the vectors of texts, in OpenAI's format. The texts of a request are embedded together and
        without those of other requests, which would change the last digits."""
        body = await read(request, EmbeddingsBody)
        index = index_of(body.model)

        def work(texts: list[str]) -> list[tuple[np.ndarray, int]]:
            return index.embed(texts, body.input_type, observe=engine.observe)

        def shape(embedded: list[tuple[np.ndarray, int]]) -> dict[str, Any]:
            assert index.model is not None
            vectors = np.stack([vector for vector, _ in embedded])
            width = body.dimensions or vectors.shape[1]
            if width > vectors.shape[1]:
                said = f"dimensions={width}, but the vectors have {vectors.shape[1]}"
                raise HTTPException(422, said)
            vectors = vectors[:, :width]
            if index.model.similarity_fn_name == "cosine":
                vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
            rows: list[Any] = vectors.tolist()
            if body.encoding_format == "base64":
                rows = [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in vectors]
            data = [{"object": "embedding", "index": at, "embedding": row} for at, row in enumerate(rows)]
            count = sum(length for _, length in embedded)
            usage = {"prompt_tokens": count, "total_tokens": count}
            return {"object": "list", "data": data, "model": index.name, "usage": usage}

        return await arrived(engine.ask(object(), body.input, work, shape))

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        """Returns the names that ``/v1/embeddings`` takes as ``model``, in OpenAI's format."""
        index_of(None)
        about = {"object": "model", "created": 0, "owned_by": "dpr"}
        return {"object": "list", "data": [{"id": one.name, **about} for one in engine.indexes if one.model]}

    @app.get("/info")
    def info() -> dict[str, Any]:
        """Returns the version, indexes, metadata fields and limits of the service."""
        return {
            "version": __version__,
            "indexes": [index.described() for index in engine.indexes],
            "metadata": settings.metadata_kinds(),
            "limits": LIMITS,
        }

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """Answers if the process is alive."""
        return {"status": "alive"}

    @app.get("/readyz")
    async def readyz() -> dict[str, str]:
        """Answers if the indexes are open, else refuses with 503."""
        index_of(None)
        return {"status": "ready"}

    @app.get("/metrics")
    async def metrics() -> Response:
        """Returns counts and times, for Prometheus."""
        return Response(generate_latest(registry), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/")
    async def page() -> Response:
        """Returns the page for searching by hand."""
        return FileResponse(PAGE / "index.html")

    return app, engine


def _check_origin(request: Request, settings: ServeSettings, token: str | None) -> None:
    """Raises HTTPException if the request is not allowed."""
    path = request.scope["path"]
    headers = request.headers
    is_open = path == "/" or path.startswith("/page/")
    if path in HEALTH:
        return
    if token is not None:
        given = headers.get("authorization", "")
        if not is_open and not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
            said = f"{'another' if given else 'no'} token, expected the header Authorization: Bearer <token>"
            raise HTTPException(401, said, headers={"WWW-Authenticate": "Bearer"})
    elif is_loopback(settings.host):
        # The name of another site may be made to point here, and only the Host header tells. Its page could
        # not read any answer, but it could make the service work. Following a link is fine.
        host = headers.get("host", "").lower()
        name = host[1 : host.find("]")] if host.startswith("[") else host.partition(":")[0]
        if not is_loopback(name):
            said = "this service answers requests to localhost only; start it with another host= or with"
            " token_file="
            raise HTTPException(421, said)
        is_other = headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
        if is_other and not is_open and headers.get("sec-fetch-dest") != "document":
            raise HTTPException(
                403,
                "the request comes from a page of another address; this service answers only its own page",
            )


def _refusal(
    request: Request, status: int, said: str, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """Returns a refusal: one sentence, where the clients of this address look for it."""
    error = {"message": said} if request.scope["path"].startswith(OPENAI) else said
    return JSONResponse({"error": error}, status, headers=headers)


def sentence(errors: Sequence[Any]) -> str:
    """Returns a sentence on the first error of a request."""
    error = errors[0]
    where = ".".join(str(part) for part in error["loc"])
    if error["type"] == "json_invalid":
        return f"the body is not JSON: {error['ctx']['error']}"
    if error["type"] == "extra_forbidden":
        return f"{where} is not known"
    if error["type"] == "missing":
        return f"{where} is missing"
    said = error["msg"].removeprefix("Value error, ")
    return f"{where or 'the body'}: {said[:1].lower()}{said[1:]}"


def _listed(hits: Hits, *, explain: bool, texts: bool) -> list[dict[str, Any]]:
    """Returns the hits of one question: id, score and place on each side. With ``texts`` adds title and text;
    with ``explain`` adds where and why each was found, as ``dpr search`` shows it."""
    words = QuestionWords(hits.question)
    values: list[dict[str, Any]] = []
    for hit in hits:
        sides = {name: None if place is None else asdict(place) for name, place in hit.sides.items()}
        value: dict[str, Any] = {"id": hit.id, "score": hit.score, "sides": sides}
        if texts:
            value["title"] = hit.title
            value["text"] = hit.text
            if hit.metadata:
                value["metadata"] = hit.metadata
        if explain:
            value["file"] = None if hit.file is None else hit.file.name
            if hit.origin is not None:
                parts = ("place", "heading", "url")
                value["origin"] = {part: getattr(hit.origin, part) for part in parts}
            value["title_pieces"] = words.pieces(hit.title or hit.id)
            value["excerpt"] = words.excerpt(hit.text, EXCERPT)
            value["pieces"] = words.pieces(hit.text)
            value["words"] = words.in_common(hit.title, hit.text)
        values.append(value)
    return values
