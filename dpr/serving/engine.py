"""Open run folders, and the thread that searches them. Requests that arrive while it is busy form its next
batch, so a single request does not wait."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import HTTPException

from dpr.core.batch import TokenBatch
from dpr.core.distributed import resolve_device
from dpr.core.errors import ConfigError, InputError, first_line
from dpr.core.logs import get_logger
from dpr.core.records import Passage
from dpr.data.text import QuestionForm
from dpr.embedding.encode import encode_tokens
from dpr.models.biencoder import BATCH_TOKENS, BiEncoder
from dpr.retrieval.dense import question_batch
from dpr.retrieval.hits import Hits
from dpr.retrieval.retriever import Retriever
from dpr.retrieval.search_json import SEARCH_JSON
from dpr.serving.settings import ServeSettings

logger = get_logger(__name__)
TEXTS_AT_ONCE = 64
"""Number of texts at which a batch takes no further request."""
_QUESTION = ("query", "question", "search_query")
_PASSAGE = ("passage", "document", "search_document")
Observe = Callable[[str, float], None]


@dataclass(frozen=True)
class ServedIndex:
    """A run opened in one search mode, or a model without passages."""

    info: Mapping[str, Any]
    """Description that stays the same."""
    retriever: Retriever | None = None
    model: BiEncoder | None = None
    form: QuestionForm = field(default_factory=QuestionForm)

    @property
    def name(self) -> str:
        return self.info["name"]

    def described(self) -> dict[str, Any]:
        """Returns the description in the answer of /info, with the number of passages at the last search."""
        passages = None
        if self.retriever is not None:
            passages = self.retriever.index(self.info["mode"]).num_passages
        return {**self.info, "passages": passages}

    def search(
        self, questions: list[str], k: int, wanted: Mapping[str, Any], *, texts: bool, observe: Observe
    ) -> list[Hits]:
        """Returns the hits of each question; ``wanted`` has ids and metadata to filter by. Raises HTTPException if the
        request makes no sense for this index."""
        if self.retriever is None:
            said = f"{self.name} is a model without passages; it answers /v1/embeddings"
            raise HTTPException(422, said)
        where = wanted.get("metadata")
        ids = wanted.get("ids")
        try:
            found = self.retriever.search(
                questions, k, mode=self.info["mode"], where=where, ids=ids, texts=texts
            )
        except (ConfigError, InputError) as error:
            if isinstance(error, InputError) and error.file is not None:
                raise
            raise HTTPException(422, first_line(error)) from None
        for stage, seconds in self.retriever.seconds.items():
            observe(stage, seconds)
        self.retriever.seconds.clear()
        return found

    def embed(self, texts: list[str], side: str | None, *, observe: Observe) -> list[tuple[np.ndarray, int]]:
        """Returns the vector (D,) float32 of each text, and its number of tokens. Texts are embedded as
        questions for a search, or as passages without title. Raises HTTPException if the request makes no
        sense for this index."""
        if self.model is None:
            raise HTTPException(422, f"{self.name} has no model; it searches by words alone")
        model = self.model
        form = self.form
        if side is None and (model.sides_differ or form != QuestionForm()):
            said = "the model embeds questions and passages differently; set input_type:"
            raise HTTPException(422, f"{said} query or passage")
        prompts = model.tensorizer.text.prompts
        start = time.perf_counter()
        if side is None or side in _PASSAGE:
            tower = "ctx"
            sequences = model.tensorizer.passage_tokens([Passage(text) for text in texts])
            tokens = TokenBatch.from_lists(sequences)
        elif side in _QUESTION or side in prompts:
            tower = form.encoder_type
            tokens = question_batch(model, texts, replace(form, prompt=side) if side in prompts else form)
        else:
            known = ", ".join([_QUESTION[0], _PASSAGE[0], *sorted(prompts)])
            raise HTTPException(422, f"input_type {side[:200]!r} is not known; choose from {known}")
        tokenised = time.perf_counter()
        vectors = encode_tokens(
            model, tokens, encoder_type=tower, batch_tokens=BATCH_TOKENS, batch_size=2 * TEXTS_AT_ONCE
        )
        observe("tokenise", tokenised - start)
        observe("inference", time.perf_counter() - tokenised)
        return list(zip(vectors, tokens.lengths.tolist(), strict=True))


def open_runs(folders: Mapping[str, Path], settings: ServeSettings) -> Iterator[ServedIndex]:
    """Yields the indexes of each run, its own search mode first.

    Raises:
        ConfigError, InputError: a folder cannot be searched, or its files are damaged or do not belong
            together.
    """
    for name, folder in folders.items():
        info: dict[str, Any] = {"name": name, "run": name, "mode": "model"}
        if not (folder / SEARCH_JSON).is_file():
            alone = BiEncoder.load(folder, device=resolve_device(settings.device))
            yield ServedIndex(info | {"model_fingerprint": alone.fingerprint}, model=alone)
            continue

        retriever = Retriever.open(folder, device=settings.device)
        others = [mode for mode in retriever.modes if mode in settings.mode_names()]
        modes = list(dict.fromkeys([retriever.mode, *others]))
        for mode in modes:
            retriever.sides(mode)
        retriever.kinds = settings.metadata_kinds()
        fields = retriever.fields(retriever.kinds)

        model = None
        form = QuestionForm()
        if modes != ["bm25"]:
            dense: Any = retriever.sides("dense")["dense"]
            model = dense.model
            form = dense.form
        for mode in modes:
            index = retriever.index(mode)
            described = {
                "name": name if mode == retriever.mode else f"{name}:{mode}",
                "mode": mode,
                "exact": index.can_filter,
                "recall": asdict(index.recall) if index.recall else None,
                "choices": fields.choices(),
                "model_fingerprint": None if model is None or mode == "bm25" else model.fingerprint,
            }
            yield ServedIndex(info | described, retriever, model, form)


@dataclass(eq=False)
class _Job:
    alike: Any
    """Key of jobs that are worked on as one."""
    texts: list[str]
    work: Callable[[list[str]], list[Any]]
    shape: Callable[[list[Any]], Any]
    answer: Future[bytes] = field(default_factory=Future)
    since: float = field(default_factory=time.perf_counter)


class Engine:
    """A thread that opens the indexes and then works on one batch after another.

    Args:
        opened: makes the indexes.
        observe: called with the seconds of each stage.
    """

    def __init__(self, opened: Callable[[], Iterator[ServedIndex]], observe: Observe) -> None:
        self._opened = opened
        self.observe = observe
        self.failures: list[Exception] = []
        """The error if the indexes cannot be opened."""
        self.on_failure: Callable[[], None] = lambda: None
        """Called then."""
        self._waiting: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True, name="engine")
        self.start = self._thread.start
        self.num_waiting = self._waiting.qsize
        self.indexes: list[ServedIndex] = []
        """The indexes; empty until they are open."""

    def stop(self) -> bool:
        """Ends the thread once it has answered the waiting requests. Returns whether that took no longer than a
        second."""
        self._waiting.put(None)
        self._thread.join(1.0)
        return not self._thread.is_alive()

    def ask(
        self,
        alike: Any,
        texts: list[str],
        work: Callable[[list[str]], list[Any]],
        shape: Callable[[list[Any]], Any],
    ) -> Future[bytes]:
        """Returns the future answer as JSON: ``shape`` applied to the results of ``work`` for each text. Jobs
        with an equal ``alike`` share a call of ``work``."""
        job = _Job(alike, texts, work, shape)
        self._waiting.put(job)
        return job.answer

    def _run(self) -> None:
        try:
            self.indexes = list(self._opened())
        except Exception as error:
            self.failures.append(error)
            self.on_failure()
            return
        logger.info("ready: %s", ", ".join(index.name for index in self.indexes))
        last = 1
        patience = 0.0
        while True:
            together: dict[Any, list[_Job]] = {}
            count = num_jobs = 0
            start = time.perf_counter()
            while count < TEXTS_AT_ONCE:
                if num_jobs and self._waiting.empty():
                    # Clients that were answered together ask again together, but their requests arrive one
                    # after another. Starting with the first request alone would cost a pass over the index.
                    if num_jobs >= last or time.perf_counter() - start > patience:
                        break
                    time.sleep(0.0005)
                    continue
                job = self._waiting.get()
                if job is None:
                    self._waiting.put(None)
                    break
                if not num_jobs:
                    start = time.perf_counter()
                if job.answer.set_running_or_notify_cancel():  # else its client no longer waits
                    self.observe("queue", time.perf_counter() - job.since)
                    together.setdefault(job.alike, []).append(job)
                    num_jobs += 1
                    count += len(job.texts)
            if not count:
                return
            start = time.perf_counter()
            for jobs in together.values():
                self._work(jobs)
            last = num_jobs
            patience = min(0.05, 0.2 * (time.perf_counter() - start))

    def _work(self, jobs: list[_Job]) -> None:
        try:
            results = iter(jobs[0].work([text for job in jobs for text in job.texts]))
            answers = []
            for job in jobs:
                value = job.shape([next(results) for _ in job.texts])
                answers.append(json.dumps(value, ensure_ascii=False, allow_nan=False, default=str).encode())
        except Exception as error:
            if len(jobs) == 1:
                jobs[0].answer.set_exception(error)
                return
            for job in jobs:  # one failing job must not fail the others
                self._work([job])
            return
        for job, answer in zip(jobs, answers, strict=True):
            job.answer.set_result(answer)
