"""Settings of ``dpr mine`` and ``dpr score``: the rules for hard negatives, the data, and the models that
score them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import ClassVar

from dpr.core.compute_settings import ForwardSettings
from dpr.core.errors import ConfigError
from dpr.core.settings import Settings, require_set, setting
from dpr.embedding.settings import ModelSettings
from dpr.indexer.settings import DEFAULT_WEIGHT

_MODELS = tuple(item.name for item in fields(ForwardSettings))


@dataclass
class MiningSettings(Settings):
    """Rules for hard negatives."""

    per_question: int = setting(5, unit="passages", least=1)
    """Maximum number of negatives per question."""
    from_rank: int = setting(1, least=1)
    """First rank to take negatives from, counted before all filters."""
    to_rank: int = setting(100, least=1)
    """Last rank to take negatives from."""
    max_relative_score: float = setting(0.0, least=0)
    """Maximum score of a negative, as a share of the score p of the positive: passages that score above
    p - (1 - max_relative_score) * |p| are left out; 0 = no maximum."""
    keep_existing: bool = False
    """Keep the hard negatives of the training data, before the mined ones."""
    allow_missing: bool = False
    """Mine even from a corpus that contains none of the positives."""

    def check_together(self, prefix: str) -> None:
        if self.to_rank < self.from_rank:
            raise ConfigError(f"{prefix}to_rank={self.to_rank} is below {prefix}from_rank={self.from_rank}")

    def highest_score(self, positive_score: float | None) -> float:
        """Returns the score up to which a passage may be a negative; infinite if no rule applies.

        Shares of a positive's score are meaningless if it is exactly 0 (no word in common, for BM25).
        """
        if not positive_score or not self.max_relative_score:
            return float("inf")
        return positive_score - (1 - self.max_relative_score) * abs(positive_score)


@dataclass
class MiningInputs(ForwardSettings, ModelSettings):
    """Training data, and the scorer of its passages: a bi-encoder (model_file), a cross-encoder, or without
    one BM25."""

    files: list[str] = setting(list, operand="FILE ...", path="input")
    """Training files, folders or patterns, which form one data set."""
    out: str | None = setting(None, path="output")
    """File to write; compressed if the name ends in .gz."""
    corpus: str | None = setting(None, path="input")
    """Passages to search, and for word statistics; absent = those of the training data."""
    cross_encoder: str | None = setting(None, path="input")
    """Folder of a sequence classifier that reads question and passage together."""
    prompt: str | None = None
    """Name of the model's prompt for these questions (encoder.prompts); absent = encoder.query_prompt."""
    processes: int = setting(1, unit="processes", least=1)
    """Processes that search by BM25 and filter. A model uses all cores, in one process."""
    overwrite: bool = False
    """Replace existing files at out."""

    def unused(self) -> Iterator[str]:
        yield from super().unused()
        if not self.model_file:
            yield from ("prompt", "encoder")
        if self.model_file or self.cross_encoder:
            yield "processes"
        else:
            yield from _MODELS

    def check_together(self, prefix: str) -> None:
        super().check_together(prefix)
        require_set(self, {"files": "train.jsonl", "out": "train_mined.jsonl"})


@dataclass
class MineCommand(MiningInputs, MiningSettings):
    """Adds hard negatives, found by BM25 or a model, to training data in any format that dpr prepare reads,
    and prints an audit of them.

    Rerun the same command to resume a killed run; a finished one is not repeated."""

    FIRST: ClassVar[str] = """\
out corpus per_question from_rank to_rank max_relative_score keep_within model_file vectors cross_encoder device overwrite
"""
    EXAMPLES: ClassVar[str] = """\
dpr mine train.jsonl out=train_bm25.jsonl
dpr mine train.jsonl corpus=corpus.tsv out=train_bm25.jsonl per_question=10 from_rank=5 to_rank=100
dpr mine train.jsonl corpus=corpus.tsv out=train_dense.jsonl model_file=runs/first max_relative_score=0.95
dpr mine train.jsonl corpus=corpus.tsv out=train_dense.jsonl model_file=runs/first vectors=runs/first/vectors_0
dpr mine train.jsonl out=train_dense.jsonl model_file=runs/e5 "encoder.query_prompt=query: " "encoder.passage_prompt=passage: "
dpr mine written/train.jsonl corpus=corpus.tsv out=train_bm25.jsonl keep_within=20
dpr mine train.jsonl corpus=corpus.tsv out=train_dense.jsonl model_file=runs/first cross_encoder=ms-marco-cross-encoder
"""
    vectors: list[str] = setting(list, also=("encoded_ctx_files",), path="input")
    """Vectors of the corpus by this model, from dpr embed; repeat for more; none = they are computed."""
    keep_within: int = setting(0, unit="passages", least=0)
    """Leave out questions without a positive among this many first passages, to filter questions that a model
    wrote; 0 = leave none out."""

    def unused(self) -> Iterator[str]:
        yield from super().unused()
        if not self.model_file:
            yield "vectors"
        if not self.corpus:
            yield "allow_missing"

    def check_together(self, prefix: str) -> None:
        super().check_together(prefix)
        if self.keep_within > self.to_rank:
            raise ConfigError(
                f"keep_within={self.keep_within} is above to_rank={self.to_rank}, the last rank that is"
                " searched"
            )


@dataclass
class ScoreCommand(MiningInputs):
    """Adds a teacher_score to every passage of training data in any format that dpr prepare reads, and prints
    statistics of the scores.

    The teacher is a cross-encoder (its log-odds), a bi-encoder (its scores), BM25, or a hybrid of the last
    two. Rerun the same command to resume a killed run; a finished one is not repeated."""

    EXAMPLES: ClassVar[str] = """\
dpr score train.jsonl out=train_scored.jsonl cross_encoder=ms-marco-cross-encoder
dpr score train.jsonl out=train_scored.jsonl model_file=runs/large
dpr score train.jsonl out=train_scored.jsonl corpus=corpus.tsv processes=2
dpr score train.jsonl out=train_scored.jsonl corpus=corpus.tsv model_file=runs/first hybrid=linear
"""
    hybrid: str = setting("none", choices=("none", "linear"))
    """linear: the weighted sum of model_file's and BM25's scores, by which dpr retrieve hybrid=linear ranks."""
    hybrid_weight: float = setting(DEFAULT_WEIGHT, least=0, most=1)
    """Share of the model in the hybrid."""

    def unused(self) -> Iterator[str]:
        yield from super().unused()
        if self.hybrid == "none":
            yield "hybrid_weight"
        if self.cross_encoder:
            yield "corpus"

    def check_together(self, prefix: str) -> None:
        super().check_together(prefix)
        if self.cross_encoder and self.model_file:
            raise ConfigError(
                "cross_encoder and model_file are mutually exclusive: one teacher scores; leave one of"
                " them out"
            )
        if self.hybrid != "none" and not self.model_file:
            raise ConfigError(f"hybrid={self.hybrid} joins a model with BM25; add model_file=<folder>")
