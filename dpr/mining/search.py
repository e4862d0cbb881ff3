"""Corpus that negatives are mined from, and searches in it for the questions of a block: by BM25, or exactly
by a bi-encoder. The bi-encoder searches given vectors of the corpus, or computes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, zip_longest
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import torch

from dpr.core.batch import TokenBatch
from dpr.core.compute_settings import ForwardSettings
from dpr.core.distributed import resolve_device
from dpr.core.errors import ConfigError, InputError
from dpr.core.logs import counted
from dpr.core.records import Passage, passage_hash, plain, text_hash
from dpr.data.near_duplicates import resembles
from dpr.data.words import words_of
from dpr.embedding.encode import default_batch_tokens, encode_tokens, fit_to_vectors, tokenize_passages
from dpr.embedding.job import embed_shard
from dpr.embedding.settings import CheckpointEncoderConfig, EmbedConfig
from dpr.embedding.source import PassageSource, StoredSource, require_corpora
from dpr.formats.corpora import write_passages
from dpr.formats.id_hashes import HashIndex, mapped_hashes
from dpr.formats.stored_training_set import TrainingSet
from dpr.formats.text_store import open_store
from dpr.formats.vector_shards import VectorShard, open_shards
from dpr.indexer.exact import ExactIndex
from dpr.indexer.ranking import Ranking, decode_ids, to_rankings
from dpr.indexer.registry import IndexChoice, IndexTexts
from dpr.indexer.saved import IndexStore
from dpr.indexer.settings import Bm25Settings
from dpr.indexer.vectors import paired_dots, take_rows
from dpr.mining.settings import MiningInputs
from dpr.models.biencoder import BiEncoder
from dpr.models.cross_encoder import CrossEncoder
from dpr.storage.durable import MANIFEST, describe_file, durable_folder

TRAINING_PASSAGES = "corpus.jsonl"
_AT_ONCE = 8192
_BY_TEXT = "rows_by_text"
_MADE = "text:"
_MOST_SAME_TEXT = 100  # passages, of which one has the title that is looked for


class MiningCorpus:
    """A corpus file with its indexes in the work folder, which the first opening writes. Passages are found
    by id, by row and by text, all memory-mapped from disk.

    Raises:
        InputError: the file is missing, empty or has a bad row, or an id occurs twice.
    """

    def __init__(self, file: Path, work: Path) -> None:
        self.file = file
        self.work = work
        self.texts = open_store(file, cache_dir=work)
        if not len(self.texts):
            raise InputError("no passages", file=file, expected="at least one")
        if not (work / _BY_TEXT).is_dir():
            passages = counted(self.texts.passages(), "hashing passages", len(self.texts))
            with durable_folder(work / _BY_TEXT) as folder, TemporaryFile(dir=folder) as written:
                for passage in passages:
                    written.write(text_hash(plain(passage.text)).to_bytes(8, "little"))
                HashIndex.write(folder / "rows.npy", mapped_hashes(written))
        self._by_text = HashIndex(work / _BY_TEXT / "rows.npy")

    def __reduce__(self) -> tuple[Any, ...]:
        return MiningCorpus, (self.file, self.work)  # open files cannot be sent

    def id_at(self, row: int) -> str:
        """Returns the id of a row of the corpus, as searches return it."""
        return self.texts.id_at(row)

    def passage(self, key: str) -> Passage:
        """Returns a passage of the corpus. A passage without an id stays without, so that its text identifies it."""
        passage = self.texts.passage(key)
        return replace(passage, id=None) if key.startswith(_MADE) else passage

    def row_of(self, passage: Passage) -> int | None:
        """Returns the row of the passage with this text: of several, the first one with this title, or else the
        first."""
        rows = list(islice(self._by_text.rows(text_hash(plain(passage.text))), _MOST_SAME_TEXT))
        if len(rows) > 1:
            title = plain(passage.title)
            rows.sort(key=lambda row: plain(self.texts.passage(self.id_at(row)).title) != title)
        return rows[0] if rows else None

    def holds(self, passage: Passage) -> bool:
        """Returns True if a passage with this text is there, or one with this id and nearly the same words."""
        if self.row_of(passage) is not None:
            return True
        found = self.texts.passages_with([passage.id] if passage.id else [])
        return resembles(words_of(passage.text), (words_of(other.text) for other in found.values()))

    def named(self, passage: Passage) -> Passage:
        """Returns a passage of the training data with its id in the corpus.

        Otherwise one text would be two passages: a question's positive, and a negative that training does not
        recognise as that positive.
        """
        row = self.row_of(passage)
        key = _MADE if row is None else self.id_at(row)
        return passage if key.startswith(_MADE) else replace(passage, id=key)

    def source(self) -> PassageSource:
        """Returns the passages as an embedding job reads them, whatever the format of the file."""
        return StoredSource(self.file, name=self.file.name, store=self.texts)


def write_training_passages(train: TrainingSet, file: Path) -> int:
    """Writes the distinct passages of a training set as a corpus, and returns their number. Holds two hashes
    of each in memory."""
    contents: set[int] = set()
    names: set[int] = set()

    def distinct() -> Iterator[Passage]:
        for row in counted(range(len(train)), "collecting the passages", unit="questions"):
            sample = train[row]
            for passage in sample.passages:
                content = passage_hash(passage)
                if content in contents:
                    continue
                contents.add(content)
                # An id that stands for two texts in the file is kept for the first one only.
                key = passage.id or ""
                if not key or "\0" in key or text_hash(key) in names:
                    key = f"{_MADE}{content:016x}"
                names.add(text_hash(key))
                yield replace(passage, id=key)

    return write_passages(file, distinct())


@dataclass(frozen=True, slots=True)
class Query:
    """A question, the rows of its positives in the corpus, and its positives that are not there."""

    question: str
    positives: Sequence[int] = ()
    outside: Sequence[Passage] = ()


Found = tuple[Ranking, float | None]
"""Best passages of a question, and the highest score of its positives; None if that is unknown."""


class LexicalSearch:
    """BM25 over titles and texts. Its index is built in memory (its postings, 8 bytes a word) and then
    mapped. The score of a positive is known if it is in the corpus."""

    mined_by = "bm25"
    """Value of ``mined_by`` in the negatives."""
    block_rows = 500
    """Number of questions searched together."""
    _choice = IndexChoice("bm25", Bm25Settings())

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_opened": None}  # each process opens the index for itself

    def metadata(self) -> dict[str, Any]:
        """Returns everything that determines the result, as JSON. If any of it changes, mining starts over."""
        return self._choice.metadata()

    def prepare(self, corpus: MiningCorpus) -> None:
        """Writes missing files to the corpus's work folder, before several processes need them."""
        self._corpus = corpus
        self._opened: Any = None
        self._index()

    def find(self, queries: Sequence[Query], depth: int) -> list[Found]:
        """Returns the ``depth`` best passages for each question of a block."""
        found = (self._index().search_beside(query.question, depth, query.positives) for query in queries)
        return [(hits, max(scores, default=None)) for hits, scores in found]

    def scores(self, questions: Sequence[str], passages: Sequence[Sequence[int]]) -> list[list[float]]:
        """Returns the scores of given passages, by their rows in the corpus, for each question of a block,
        whether a search would find them or not."""
        pairs = zip(questions, passages, strict=True)
        return [self._index().search_beside(question, 1, rows)[1] for question, rows in pairs]

    def _index(self) -> Any:
        def texts() -> IndexTexts:
            store = self._corpus.texts
            return IndexTexts(
                store.ids(), (f"{passage.title} {passage.text}" for passage in store.passages())
            )

        if self._opened is None:
            self._opened = IndexStore(self._choice, self._corpus.work / "index").load_or_build(texts)
        return self._opened


@dataclass
class DenseSearch:
    """Search by a bi-encoder. The score of every positive is known: one that is not in the corpus is encoded.
    The methods are those of ``LexicalSearch``.

    Args:
        shards: vectors of the corpus by this model, in the order of the corpus. If there are none, they are
            made in the work folder.
        batch_tokens, precision: those of the forward passes.
        prompt: name of the model's prompt for these questions.
    """

    model: BiEncoder
    shards: Sequence[VectorShard] = ()
    batch_tokens: int = 4096
    precision: str = "fp32"
    prompt: str | None = None

    block_rows = 4096  # for which the vectors of the corpus are read once

    @cached_property
    def _fingerprint(self) -> str:
        return self.model.fingerprint

    @property
    def mined_by(self) -> str:
        return f"dense:{self._fingerprint[:12]}"

    def metadata(self) -> dict[str, Any]:
        return {
            "kind": "dense",
            "model_fingerprint": self._fingerprint,
            "precision": self.precision,
            "vectors": [describe_file(shard.path / MANIFEST)["sha256"] for shard in self.shards],
            "prompt": self.prompt,
        }

    def prepare(self, corpus: MiningCorpus) -> None:
        shards = self.shards
        if not shards:
            config = EmbedConfig(
                out_file=str(corpus.work / "vectors"),
                batch_tokens=self.batch_tokens,
                precision=self.precision,
            )
            folder = embed_shard(self.model, corpus.source(), config).folder
            shards = [VectorShard(folder, verify=False)]
        # the vectors must be those of the corpus, one by one and in its order
        ids = (key for shard in shards for chunk in shard.id_chunks() for key in decode_ids(chunk))
        for number, (found, expected) in enumerate(zip_longest(ids, corpus.texts.ids()), 1):
            if found != expected:
                raise InputError(
                    f"vector {number} has the id {found!r} where the corpus has {expected!r}",
                    file=", ".join(str(shard.path) for shard in shards[:4]),
                    expected=f"one vector for each passage of {corpus.file}, in their order",
                    hint=f"embed {corpus.file} with this model, without an id_prefix, or leave vectors out",
                )
        self.use_vectors(shards, self.model.device)

    def use_vectors(self, shards: Sequence[VectorShard], device: torch.device | str = "cpu") -> None:
        """Makes searches use these vectors."""
        self._index = ExactIndex(shards, device=device)
        self._shards = shards
        # passages outside of the corpus are encoded in the same way
        self._encoder_type = str(shards[0].metadata.get("encoder_type", "ctx"))

    def encoded(self, tokens: TokenBatch, encoder_type: str) -> np.ndarray:
        return encode_tokens(
            self.model,
            tokens,
            encoder_type=encoder_type,
            batch_tokens=self.batch_tokens,
            precision=self.precision,
        )

    def encoded_questions(self, questions: Sequence[str]) -> np.ndarray:
        tokens = self.model.tensorizer.question_tokens(questions, prompt=self.prompt)
        return self.encoded(TokenBatch.from_lists(tokens), "question")

    def find(self, queries: Sequence[Query], depth: int) -> list[Found]:
        questions = self.encoded_questions([query.question for query in queries])
        best = np.full(len(queries), np.nan, dtype=np.float32)
        pairs = [(place, row) for place, query in enumerate(queries) for row in query.positives]
        places = np.array([place for place, _ in pairs], dtype=np.int64)
        np.fmax.at(best, places, self._dots(questions, pairs))

        outside = [(place, passage) for place, query in enumerate(queries) for passage in query.outside]
        for start in range(0, len(outside), _AT_ONCE):
            portion = outside[start : start + _AT_ONCE]
            places = np.array([place for place, _ in portion])
            tokens = tokenize_passages(self.model.tensorizer, [passage for _, passage in portion])
            vectors = self.encoded(tokens, self._encoder_type)
            np.fmax.at(best, places, paired_dots(questions, places, vectors, np.arange(len(vectors))))

        rankings = to_rankings(self._index.search(questions, depth))
        return [
            (hits, None if np.isnan(score) else float(score))
            for hits, score in zip(rankings, best, strict=True)
        ]

    def scores(self, questions: Sequence[str], passages: Sequence[Sequence[int]]) -> list[list[float]]:
        pairs = [(place, row) for place, rows in enumerate(passages) for row in rows]
        values = iter(self._dots(self.encoded_questions(questions), pairs).tolist())
        return [[next(values) for _ in rows] for rows in passages]

    def _dots(self, questions: np.ndarray, pairs: Sequence[tuple[int, int]]) -> np.ndarray:
        """Returns scores (n,) of pairs of a question's place and a passage's row. Only these rows are read."""
        places, rows = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        order = np.argsort(rows, kind="stable")
        scores = np.empty(len(rows), dtype=np.float32)
        for start in range(0, len(order), _AT_ONCE):
            part = order[start : start + _AT_ONCE]
            distinct, columns = np.unique(rows[part], return_inverse=True)
            scores[part] = paired_dots(questions, places[part], take_rows(self._shards, distinct)[1], columns)
        return scores


Search = LexicalSearch | DenseSearch


def dense_search(
    model_file: BiEncoder | str | Path,
    config: ForwardSettings,
    *,
    encoder: CheckpointEncoderConfig | None = None,
    prompt: str | None = None,
    corpus: Path | None = None,
    vectors: Sequence[str] = (),
) -> Search:
    """Opens a bi-encoder's search over ``vectors`` of ``corpus`` that ``dpr embed`` made. Without them it
    makes them, with the device and batches of ``config``.

    Raises:
        ConfigError: vectors without a corpus, or a prompt that the model does not have.
        InputError: vectors of another model or corpus, with a prefix of passages, or unfinished ones.
        CheckpointError: there is no model.
    """
    if vectors and corpus is None:
        raise ConfigError("vectors belong to a corpus; name it with corpus=<file>")
    where = resolve_device(config.device)
    model = model_file
    if not isinstance(model, BiEncoder):
        model = BiEncoder.load(model, device=where, **(encoder or CheckpointEncoderConfig()).arguments())
    model.tensorizer.text.question_prompt(prompt)
    shards = open_shards(vectors) if vectors else []
    fit_to_vectors(model, shards, model_file=f"model_file={model_file}")
    if corpus is not None:
        stated = [shard.metadata for shard in shards]
        require_corpora(stated, [PassageSource(corpus)], file=", ".join(vectors))
    for shard in shards:
        if stored := shard.metadata.get("passage_prefix"):
            hint = f"embed the corpus with encoder.passage_prompt={stored!r}, and name it here too"
            raise InputError(f"vectors made with passage_prefix={stored!r}", file=shard.path, hint=hint)
    return DenseSearch(
        model,
        shards=shards,
        batch_tokens=config.batch_tokens or default_batch_tokens(model.device),
        precision=config.precision,
        prompt=prompt,
    )


def open_scorer(config: MiningInputs) -> CrossEncoder | None:
    """Opens the cross-encoder of the settings, if they name one."""
    if not config.cross_encoder:
        return None
    where = resolve_device(config.device)
    batch_tokens = config.batch_tokens or default_batch_tokens(where)
    return CrossEncoder.load(
        config.cross_encoder, where, batch_tokens=batch_tokens, precision=config.precision
    )
