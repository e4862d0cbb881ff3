"""The service's addresses, and the bodies of requests. What searches is behind ``Service``; what is refused
before, in ``Guard``."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from starlette.exceptions import HTTPException

from dpr.core.errors import DprError, first_line
from dpr.core.logs import get_logger
from dpr.core.version import __version__
from dpr.serving.figures import Figures
from dpr.serving.guard import FAILED, NOT_JSON, OPENAI, Guard
from dpr.serving.queueing import Service, Unavailable
from dpr.serving.settings import LimitSettings, ServeSettings

logger = get_logger(__name__)
PAGE = Path(__file__).parent / "page"
_OPENING = "the indexes are being opened"
_EXPLAINED = 10  # an explained passage takes as long as so many others
_TOPK = 3  # what trainers of search agents take where they state none


def _encodable(text: str) -> str:
    text.encode()  # halves of surrogate pairs, which JSON can write, are no text
    return text


Text = Annotated[str, AfterValidator(_encodable)]
Value = Text | bool | int | float


class Filter(BaseModel):
    """Which passages are searched at all."""

    model_config = ConfigDict(extra="forbid", strict=True)

    ids: list[Text] | None = Field(None, min_length=1, max_length=10_000, description="Only these passages.")
    metadata: dict[Text, Value | list[Value]] | None = Field(
        None,
        min_length=1,
        description="Only passages whose fields have these values, or one of a list of them.",
    )

    @model_validator(mode="after")
    def says_something(self) -> Filter:
        """Nothing to filter by would let every passage through."""
        if self.ids is None and self.metadata is None:
            raise ValueError("names neither ids nor metadata")
        return self


class SearchBody(BaseModel):
    """Questions, and how to search."""

    model_config = ConfigDict(extra="forbid", strict=True)

    queries: list[Text] = Field(min_length=1)
    index: Text | None = Field(None, description="A name of /info; absent = the first.")
    k: int = Field(10, ge=1, description="Passages per question.")
    filter: Filter | None = None
    texts: bool = Field(True, description="Give title and text of each passage.")
    explain: bool = Field(
        False, description="Give the part of the text around the question's words, and these words."
    )


class RetrieveBody(BaseModel):
    """What trainers of search agents send."""

    model_config = ConfigDict(strict=True)

    queries: list[Text] = Field(min_length=1)
    topk: int | None = Field(None, ge=1)
    return_scores: bool = False
    index: Text | None = None


def _only_texts(value: Any) -> Any:
    if isinstance(value, list) and any(not isinstance(item, str) for item in value):
        raise ValueError(
            "holds something else than texts; token numbers are those of one tokenizer, so send the texts"
            " themselves"
        )
    return [value] if isinstance(value, str) else value


Texts = Annotated[list[Text], BeforeValidator(_only_texts), Field(min_length=1)]


class EmbeddingsBody(BaseModel):
    """What OpenAI's clients send, with ``input_type`` beside it."""

    model_config = ConfigDict(strict=True)

    input: Texts
    model: Text | None = Field(None, description="A name of /info; absent = the first.")
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1, description="The first so many numbers; absent = all.")
    input_type: Text | None = Field(
        None, description="query, passage, or the name of one of the model's prompts."
    )


class EmbedBody(BaseModel):
    """What clients of text-embeddings-inference send."""

    model_config = ConfigDict(strict=True)

    inputs: Texts
    prompt_name: Text | None = Field(None, description="As input_type of /v1/embeddings.")
    dimensions: int | None = Field(None, ge=1)
    normalize: bool = Field(False, description="Give vectors length 1 also where the model's have another.")
    truncate: Literal[True] = Field(True, description="Texts are always cut to the model's length.")


def sentence(errors: Sequence[Mapping[str, Any]]) -> str:
    """The first thing that is wrong with a request."""
    error = errors[0]
    where = ".".join(str(part) for part in error["loc"][1:])
    if error["type"] == "json_invalid":
        return f"the body is not JSON: {error.get('ctx', {}).get('error', error['msg'])}"
    if error["type"] == "extra_forbidden":
        return f"{where} is not known"
    if error["type"] == "missing":
        return f"{where or 'the body'} is missing"
    if "surrogates not allowed" in error["msg"]:
        return f"{where} holds half of a surrogate pair, which is no text"
    said = error["msg"].removeprefix("Value error, ")
    return f"{where or 'the body'}: {said[:1].lower()}{said[1:]}"


def make_app(
    settings: ServeSettings,
    service: Service,
    *,
    figures: Figures | None = None,
    token: str | None = None,
    page: Path = PAGE,
    on_failure: Callable[[Exception], None] = lambda error: None,
) -> Guard:
    """The application: its addresses behind its guard.

    Args:
        service: not started yet.
        token: that requests must carry.
        page: folder with index.html and the files it names.
        on_failure: called where the indexes cannot be opened at the start.
    """
    figures = figures or Figures()

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async def first() -> None:
            try:
                await service.reload()
                logger.info("ready: %s", ", ".join(index["name"] for index in service.indexes))
            except Exception as error:
                on_failure(error)

        opening = asyncio.create_task(first())
        yield
        opening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await opening
        await service.close()

    app = FastAPI(title="dpr", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    _add_searches(app, settings, service)
    guard = Guard(app, settings, token=token, observe=figures.answered)
    _add_state(app, settings, service, lambda: figures.text(**_gauges(guard, service)))
    app.mount("/page", StaticFiles(directory=page), name="page")

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return FileResponse(page / "index.html")

    _add_refusals(app)
    return guard


def _add_refusals(app: FastAPI) -> None:
    """Every error is one sentence as JSON."""

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return _error(422, sentence(error.errors()))

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        return _error(500, FAILED)

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        known = {
            "Not Found": f"there is nothing at {request.scope['path'][:200]}",
            "Method Not Allowed": f"{request.method} is not allowed here",
            "There was an error parsing the body": NOT_JSON,
        }
        return _error(error.status_code, known.get(str(error.detail), str(error.detail)), error.headers)


def _add_searches(app: FastAPI, settings: ServeSettings, service: Service) -> None:
    async def ask(value: dict[str, Any], questions: list[str], k: int) -> Response:
        _check_limits(settings, questions, k, may_be_empty=value["do"] == "retrieve")
        if value.get("explain") and len(questions) * k * _EXPLAINED > settings.max_passages:
            raise HTTPException(
                422,
                f"explain=true for {len(questions) * k} passages, expected at most max_passages /"
                f" {_EXPLAINED}",
            )
        return await _asked(service, value | {"queries": questions, "k": k}, len(questions), settings.timeout)

    @app.post("/search")
    async def search(body: SearchBody) -> Response:
        """The best passages of each question."""
        value = {"do": "search", "index": body.index, "texts": body.texts, "explain": body.explain}
        if body.filter is not None:
            value["filter"] = body.filter.model_dump(exclude_none=True)
        return await ask(value, body.queries, body.k)

    @app.post("/retrieve")
    async def retrieve(body: RetrieveBody) -> Response:
        """The same for trainers of search agents. An empty question, which a policy may write, finds nothing
        and spoils no batch."""
        value = {"do": "retrieve", "index": body.index, "scores": body.return_scores}
        return await ask(value, body.queries, _TOPK if body.topk is None else body.topk)

    async def embedded(value: dict[str, Any], texts: list[str]) -> Response:
        _check_limits(settings, texts, 1, what="text")
        return await _asked(service, value | {"inputs": texts}, len(texts), settings.timeout)

    @app.post(OPENAI)
    async def embeddings(body: EmbeddingsBody) -> Response:
        """The vectors of texts, as OpenAI answers."""
        value = {
            "do": "embeddings",
            "index": body.model,
            "side": body.input_type,
            "dimensions": body.dimensions,
        }
        return await embedded(value | {"format": body.encoding_format}, body.input)

    @app.post("/embed")
    async def embed(body: EmbedBody) -> Response:
        """The same, as text-embeddings-inference answers."""
        value = {
            "do": "embed",
            "index": None,
            "side": body.prompt_name,
            "dimensions": body.dimensions,
            "normalize": body.normalize,
        }
        return await embedded(value, body.inputs)

    @app.get("/doc")
    async def doc(id: str, index: str | None = None) -> Response:
        """One passage."""
        return await _asked(service, {"do": "doc", "index": index, "id": id}, 1, settings.timeout)

    @app.get("/v1/{index}/search")
    async def search_as_pyserini(
        index: str, query: str, hits: int = Query(10, ge=1), parse: bool = True
    ) -> Response:
        """The same as Pyserini's server answers."""
        return await ask({"do": "candidates", "index": index, "parse": parse}, [query], hits)

    @app.get("/v1/{index}/doc/{docid:path}")
    async def doc_as_pyserini(index: str, docid: str, parse: bool = True) -> Response:
        """One passage, as Pyserini's server answers."""
        return await _asked(
            service, {"do": "document", "index": index, "id": docid, "parse": parse}, 1, settings.timeout
        )


def _add_state(app: FastAPI, settings: ServeSettings, service: Service, text: Callable[[], bytes]) -> None:
    limits = {item.name: getattr(settings, item.name) for item in fields(LimitSettings)}

    def described() -> dict[str, Any]:
        return {
            "version": __version__,
            "generation": service.generation,
            "indexes": service.indexes,
            "metadata": settings.metadata_kinds(),
            "limits": limits,
        }

    @app.get("/info")
    async def info() -> dict[str, Any]:
        """What is served."""
        return described()

    @app.post("/reload")
    async def reload() -> Response:
        """Opens the files as they are now, and swaps the indexes once that has succeeded."""
        try:
            await service.reload()
        except DprError as error:
            others = ", the ones before go on answering" if service.generation else ""
            return _error(503, f"the indexes cannot be opened{others}: {first_line(error)}")
        return JSONResponse(described())

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """Whether the process lives."""
        return {"status": "alive"}

    @app.get("/readyz")
    async def readyz() -> Response:
        """Whether it can answer."""
        return (
            JSONResponse({"status": "ready"})
            if service.is_ready
            else _error(503, service.trouble or _OPENING)
        )

    @app.get("/metrics")
    async def metrics() -> Response:
        """Counts and times, for Prometheus."""
        return Response(text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _gauges(guard: Guard, service: Service) -> dict[str, float]:
    return {
        "requests": guard.num_requests,
        "waiting": service.num_waiting,
        "workers": len(service.pids),
        "restarts": service.restarts,
        "generation": service.generation,
    }


def _check_limits(
    settings: ServeSettings,
    questions: list[str],
    k: int,
    *,
    may_be_empty: bool = False,
    what: str = "question",
) -> None:
    """Raises HTTPException."""
    if len(questions) > settings.max_queries:
        raise HTTPException(
            422, f"{len(questions)} {what}s in a request, expected at most max_queries={settings.max_queries}"
        )
    if k > settings.max_k:
        raise HTTPException(422, f"{k} passages per question, expected at most max_k={settings.max_k}")
    if len(questions) * k > settings.max_passages:
        said = (
            f"{k} passages for each of {len(questions)} questions, expected at most"
            f" max_passages={settings.max_passages} together"
        )
        raise HTTPException(422, said)
    if (longest := max(map(len, questions))) > settings.max_question:
        raise HTTPException(
            422, f"a {what} of {longest} characters, expected at most max_question={settings.max_question}"
        )
    if not may_be_empty and any(not question.strip() for question in questions):
        raise HTTPException(422, f"a {what} is empty")


async def _asked(service: Service, value: dict[str, Any], weight: int, timeout: float) -> Response:
    """Status and body come from the worker as they are."""
    if not service.is_ready and (service.trouble or not service.indexes):
        return _error(503, service.trouble or _OPENING, {"Retry-After": "2"})
    try:
        status, body = await service.ask(value, weight=weight, timeout=timeout)
    except Unavailable as error:
        return _error(503, str(error), {"Retry-After": "1"})
    return Response(body, status, media_type="application/json")


def _error(status: int, said: str, headers: Any = None) -> Response:
    return JSONResponse({"error": said}, status, headers=headers)
