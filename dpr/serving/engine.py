"""A worker of ``dpr serve``: opens run folders and answers batches of requests that come through its standard
input.

It ends when that input ends. What it or a library prints goes to standard error; standard output carries the
answers.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpr.core.distributed import resolve_device
from dpr.core.errors import ConfigError, DprError, InputError, first_line
from dpr.core.hashes import text_sha256
from dpr.core.logs import configure_logging, get_logger, limit_rate
from dpr.core.records import Passage
from dpr.formats.text_input import matching_paths
from dpr.indexer.ranking import is_among
from dpr.indexer.settings import KINDS
from dpr.jobs.search import StoredCorpus
from dpr.models.biencoder import BiEncoder
from dpr.retrieval.explaining import QuestionWords
from dpr.retrieval.fields import PassageFields
from dpr.retrieval.hits import Hit, Hits
from dpr.retrieval.retrievers import DenseRetriever, HybridRetriever, LexicalRetriever
from dpr.retrieval.search_folder import FILE as SEARCH_FILE
from dpr.retrieval.search_folder import SearchSettings
from dpr.retriever import Retriever, chosen_ids
from dpr.serving import frames
from dpr.serving.embeddings import BadRequest, ModelAlone, answers
from dpr.serving.settings import ServeSettings
from dpr.storage.durable import MANIFEST, describe_file

logger = get_logger("dpr.serving.engine")  # also where it is the program itself
_EXCERPT = 320  # characters
MODEL_MODE = "model"
"""What /info calls the mode and the kind of a model without passages."""


@dataclass(frozen=True)
class ServedIndex:
    """One way of searching one run."""

    name: str
    run: str
    mode: str
    searched: Retriever | ModelAlone
    facts: Mapping[str, Any]
    """What /info says."""
    fields: PassageFields | None
    """What its passages can be filtered by."""

    @property
    def retriever(self) -> Retriever:
        """What searches. Refusal where there is a model alone."""
        if isinstance(self.searched, ModelAlone):
            raise Refusal(
                422, f"{self.name} is a model without passages; it answers /v1/embeddings and /embed"
            )
        return self.searched


def open_runs(folders: Mapping[str, Path], settings: ServeSettings) -> Iterator[ServedIndex]:
    """The indexes of each run, its own way of searching first.

    Raises:
        ConfigError, InputError: a folder cannot be searched, or its files are damaged or do not belong
        together.
    """
    for name, folder in folders.items():
        if not (folder / SEARCH_FILE).is_file():
            model = BiEncoder.load(folder, device=resolve_device(settings.device))
            facts = {
                "name": name,
                "run": name,
                "mode": MODEL_MODE,
                "default": True,
                "choices": {},
                "kind": MODEL_MODE,
                "exact": False,
            }
            facts |= {
                "passages": None,
                "recall": None,
                "model_fingerprint": model.fingerprint,
                "fingerprint": model.fingerprint,
            }
            yield ServedIndex(name, name, MODEL_MODE, ModelAlone(model), facts, None)
            continue
        retriever = Retriever.open(folder, device=settings.device)
        corpus = retriever.corpus
        assert isinstance(corpus, StoredCorpus)
        wanted = [mode for mode in retriever.modes if mode == retriever.mode or mode in settings.mode_names()]
        for mode in wanted:
            retriever.side(mode)
        if (file := corpus.passages.reread) is not None:
            hint = "as the cache cannot be written; set DPR_CACHE to a folder that can"
            raise ConfigError(f"{file} would be read whole for each answer, {hint}")
        fields = corpus.fields(settings.metadata_kinds())
        for mode in sorted(wanted, key=lambda mode: mode != retriever.mode):
            is_own = mode == retriever.mode
            index_name = name if is_own else f"{name}:{mode}"
            facts = {
                "name": index_name,
                "run": name,
                "mode": mode,
                "default": is_own,
                "choices": fields.choices(),
            }
            yield ServedIndex(
                index_name, name, mode, retriever, facts | _facts(mode, corpus.settings, retriever), fields
            )


def _facts(mode: str, stored: SearchSettings, retriever: Retriever) -> dict[str, Any]:
    side = retriever.side(mode)
    dense = side.dense if isinstance(side, HybridRetriever) else side
    kind = "bm25" if mode == "bm25" else str(stored.indexer.get("kind"))
    kind = "exact" if kind == "bm25" and mode != "bm25" else kind  # beside a run of BM25
    model = dense.model.fingerprint if isinstance(dense, DenseRetriever) else None
    index = dense.index if isinstance(dense, DenseRetriever | LexicalRetriever) else None
    return {
        "kind": kind if mode != "hybrid" else f"{kind} + bm25",
        "exact": kind in KINDS and KINDS[kind].is_exact,
        "passages": None if index is None else index.num_passages,
        "recall": index.recall.as_dict() if index is not None and index.recall else None,
        "model_fingerprint": model,
        "fingerprint": _fingerprint(mode, stored, model),
    }


def _fingerprint(mode: str, stored: SearchSettings, model: str | None) -> str:
    """Identity of what decides an answer: model, vectors, passages, and the settings of the search."""
    parts: dict[str, Any] = {
        "mode": mode,
        "passages": [source.identity() for source in stored.passages],
        "form": asdict(stored.form),
    }
    parts["indexer"] = {
        name: value for name, value in stored.indexer.items() if mode != "bm25" or name in ("k1", "b")
    }
    if mode != "bm25":
        paths = [path for pattern in stored.encoded_ctx_files for path in matching_paths(pattern)]
        files = [
            path / MANIFEST if (path / MANIFEST).is_file() else path
            for path in [*paths, *map(Path, [stored.index_path or ""])]
        ]
        parts |= {"model": model, "dimensions": stored.dimensions, "text": asdict(stored.text)}
        parts["vectors"] = [describe_file(path)["sha256"] for path in files if path.is_file()]
    if mode == "hybrid":
        parts["fusion"] = [
            stored.hybrid,
            stored.hybrid_weight,
            stored.hybrid_normalisation,
            stored.hybrid_depth,
        ]
    return text_sha256(json.dumps(parts, sort_keys=True))[:32]


class Refusal(Exception):
    """A request that cannot be answered: status and sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Engine:
    """The indexes, and what they answer. A job is the JSON object that the service made of a request
    (``dpr/serving/app.py``)."""

    def __init__(self, indexes: Sequence[ServedIndex]) -> None:
        self._indexes = {index.name: index for index in indexes}
        self._indexes |= {f"{index.run}:{index.mode}": index for index in indexes}
        self._first = indexes[0]
        self.seconds: defaultdict[str, float] = defaultdict(float)
        """Of each stage, since they were last taken."""

    def answer(self, jobs: Sequence[dict[str, Any]]) -> list[tuple[int, bytes]]:
        """Status and body of the answer to each job. Searches of the same index, depth and filter are one
        search."""
        answers: list[tuple[int, bytes]] = [(500, b"")] * len(jobs)
        together: defaultdict[str, list[int]] = defaultdict(list)
        for place, job in enumerate(jobs):
            alike = ["inputs" in job, *map(job.get, ("index", "k", "filter", "side"))]
            together[json.dumps(alike, sort_keys=True)].append(place)
        for places in together.values():
            for place, answer in zip(
                places, self._answer_alike([jobs[place] for place in places]), strict=True
            ):
                answers[place] = answer
        return answers

    def _answer_alike(self, jobs: Sequence[dict[str, Any]]) -> list[tuple[int, bytes]]:
        try:
            index = self._index(jobs[0].get("index"))
            if "inputs" in jobs[0]:
                return [_encoded(200, value) for value in self._vectors(index, jobs)]
            if "k" not in jobs[0]:
                return [_encoded(*self._document(index, job)) for job in jobs]
            questions = [question for job in jobs for question in job["queries"]]
            has_texts = any(job.get("texts", True) or job.get("explain") for job in jobs)
            hits = iter(self._search(index, questions, jobs[0]["k"], jobs[0].get("filter"), texts=has_texts))
            return [
                _encoded(200, self._shaped(index, job, [next(hits) for _ in job["queries"]])) for job in jobs
            ]
        except Exception as error:
            if len(jobs) > 1:  # one of them must not fail the others
                return [self._answer_alike([job])[0] for job in jobs]
            if isinstance(error, Refusal):
                return [_encoded(error.status, {"error": str(error)})]
            if isinstance(error, DprError | OSError):
                logger.error("the files of an index are not what they were: %s", error)
                what = f"{error.file}: {error.found}" if isinstance(error, InputError) else first_line(error)
                said = (
                    f"the files of the index are not what they were ({what}); POST /reload opens them as they"
                    " are now"
                )
                return [_encoded(500, {"error": said})]
            logger.exception("a search failed")
            return [_encoded(500, {"error": "the search has failed; the service's log says why"})]

    def _index(self, name: str | None) -> ServedIndex:
        if name is None:
            return self._first
        if name not in self._indexes:
            raise Refusal(
                404, f"there is no index {name[:200]!r}; /info lists {', '.join(sorted(self._indexes))}"
            )
        return self._indexes[name]

    def _search(
        self,
        index: ServedIndex,
        questions: list[str],
        k: int,
        wanted: Mapping[str, Any] | None,
        *,
        texts: bool,
    ) -> list[Hits]:
        retriever, ids = index.retriever, None
        if wanted is not None:
            if not retriever.can_filter(index.mode):
                raise Refusal(422, f"{index.name} has an index but not the vectors, which a filter needs")
            try:
                ids = _ids(index, wanted)
            except InputError as error:
                raise Refusal(422, first_line(error)) from None
        hits = retriever.search(questions, k, mode=index.mode, ids=ids, texts=texts)
        self._count(retriever.seconds)
        return hits

    def _vectors(self, index: ServedIndex, jobs: Sequence[dict[str, Any]]) -> list[Any]:
        if isinstance(index.searched, ModelAlone):
            return self._answers(index.searched, index, jobs)
        if not any(f"{index.run}:{mode}" in self._indexes for mode in ("dense", "hybrid")):
            raise Refusal(422, f"{index.name} has no model; it searches by words alone")
        side = index.retriever.side("dense")
        assert isinstance(side, DenseRetriever)
        return self._answers(side, index, jobs)

    def _answers(
        self, side: DenseRetriever | ModelAlone, index: ServedIndex, jobs: Sequence[dict[str, Any]]
    ) -> list[Any]:
        try:
            values = answers(side, index.name, jobs)
        except BadRequest as error:
            raise Refusal(422, str(error)) from None
        self._count(side.seconds)
        return values

    def _count(self, seconds: dict[str, float]) -> None:
        for name, value in seconds.items():
            self.seconds[name] += value
        seconds.clear()

    def _shaped(self, index: ServedIndex, job: Mapping[str, Any], answers: list[Hits]) -> dict[str, Any]:
        """The answer to a request, from the hits of its questions."""
        start = time.perf_counter()
        value: dict[str, Any]
        if job["do"] == "retrieve":
            value = {"result": [[_for_trainers(hit, job["scores"]) for hit in hits] for hits in answers]}
        elif job["do"] == "candidates":
            candidates = [
                {
                    "docid": hit.id,
                    "score": hit.score,
                    "rank": hit.rank,
                    "doc": _contents(hit.passage, parse=job["parse"]),
                }
                for hit in answers[0]
            ]
            value = {
                "api": "v1",
                "index": job["index"],
                "query": {"text": job["queries"][0]},
                "candidates": candidates,
            }
        else:
            rows = [_hits(hits, explain=job["explain"], texts=job["texts"]) for hits in answers]
            value = {"index": index.name, "fingerprint": index.facts["fingerprint"], "results": rows}
        self.seconds["texts"] += time.perf_counter() - start
        return value

    def _document(self, index: ServedIndex, job: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        passage = index.retriever.get([job["id"]]).get(job["id"])
        if passage is None:
            raise Refusal(404, f"{index.name} has no passage {job['id'][:200]!r}")
        if job["do"] == "document":
            return 200, {
                "api": "v1",
                "index": job["index"],
                "docid": job["id"],
                "doc": _contents(passage, parse=job["parse"]),
            }
        return 200, {"index": index.name, "id": passage.id, "title": passage.title, "text": passage.text}


def _ids(index: ServedIndex, wanted: Mapping[str, Any]) -> np.ndarray:
    """Ids (n,), ascending and distinct, of the passages that a filter lets through."""
    ids = chosen_ids(wanted.get("ids") or [])
    if wanted.get("metadata") is None or index.fields is None:
        return ids
    matching = index.fields.matching(wanted["metadata"])
    return matching if wanted.get("ids") is None else matching[is_among(matching, ids)]


def _hits(hits: Hits, *, explain: bool, texts: bool) -> list[dict[str, Any]]:
    """Of one question: id, score, place on each side; title and text; where and why it was found, as ``dpr
    search`` shows it."""
    words = QuestionWords(hits.question) if explain else None
    values: list[dict[str, Any]] = []
    for hit in hits:
        sides = {
            name: place and {"rank": place.rank, "score": place.score} for name, place in hit.sides.items()
        }
        value: dict[str, Any] = {"id": hit.id, "score": hit.score, "sides": sides}
        if texts:
            value |= {"title": hit.title, "text": hit.text}
        if words is not None:
            origin = hit.origin
            value |= {
                "file": None if hit.file is None else hit.file.name,
                "origin": (
                    None
                    if origin is None
                    else {"place": origin.place, "heading": origin.heading, "url": origin.url}
                ),
                "title_pieces": words.pieces(hit.title or hit.id),
                "excerpt": words.excerpt(hit.text, _EXCERPT),
                "pieces": words.pieces(hit.text),
                "words": words.in_common(hit.title, hit.text),
            }
        values.append(value)
    return values


def _for_trainers(hit: Hit, with_scores: bool) -> dict[str, Any]:
    document = {"id": hit.id, "contents": _joined(hit.passage)}
    return {"document": document, "score": hit.score} if with_scores else document


def _contents(passage: Passage, *, parse: bool) -> Any:
    value = {"id": passage.id, "contents": _joined(passage), "title": passage.title, "text": passage.text}
    return value if parse else json.dumps(value, ensure_ascii=False)


def _joined(passage: Passage) -> str:
    return f"{passage.title}\n{passage.text}"


def _encoded(status: int, value: Any) -> tuple[int, bytes]:
    return status, json.dumps(value, ensure_ascii=False, allow_nan=False).encode()


def main() -> int:
    """The process: opens what its arguments name, says what that is, and answers."""
    options = argparse.ArgumentParser()
    options.add_argument("settings", type=json.loads)
    given = options.parse_args().settings
    for name in (
        "SIGINT",
        "SIGTERM",
        "SIGHUP",
    ):  # these reach whole groups of processes; the service ends it by ending its input
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    configure_logging()
    _send(answers, {"opening": True}, [])
    try:
        indexes = list(
            open_runs(
                {name: Path(path) for name, path in given["runs"].items()}, ServeSettings(**given["settings"])
            )
        )
    except (DprError, OSError) as error:
        code = error.exit_code if isinstance(error, DprError) else 3
        _send(answers, {"error": str(error), "exit_code": code}, [])
        return 0
    engine = Engine(indexes)
    limit_rate(get_logger("dpr"))
    _send(answers, {"indexes": [dict(index.facts) for index in indexes]}, [])
    while (frame := frames.read(sys.stdin.buffer)) is not None:
        results = engine.answer(frame["jobs"])
        _send(
            answers,
            {"statuses": [status for status, _ in results], "seconds": dict(engine.seconds)},
            [body for _, body in results],
        )
        engine.seconds.clear()
    return 0


def _send(out: Any, value: dict[str, Any], bodies: list[bytes]) -> None:
    out.write(frames.packed(value, bodies))
    out.flush()


if __name__ == "__main__":
    sys.exit(main())
