"""Settings of ``dpr mine`` and ``dpr score``: what becomes a hard negative, the data, and the models that are
asked about it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from dpr.core.compute_settings import ClusterSettings, ForwardSettings
from dpr.core.errors import ConfigError
from dpr.core.settings import Settings, require_set, setting
from dpr.embedding.settings import CheckpointEncoderConfig
from dpr.indexer.settings import DEFAULT_WEIGHT, Bm25Settings

_BM25 = ("k1", "b")
_MODEL = ("query_prefix", "passage_prefix", "prompt", "encoder")
_MODELS = tuple(item.name for item in fields(ForwardSettings))


@dataclass
class MiningSettings(Settings):
    """What becomes a negative."""

    per_question: int = setting(5, unit="passages", least=1)
    """Negatives per question, at most."""
    from_rank: int = setting(1, least=1)
    """First rank to take from, counted over all that was found."""
    to_rank: int = setting(100, least=1)
    """Last rank to take from."""
    pick: str = setting("top", choices=("top", "sample"))
    """top: the best that pass the filters; sample: any of them, drawn by seed and row."""
    seed: int = setting(0, least=0)
    """Decides what is drawn with pick=sample."""
    keep_answers: bool = False
    """Keep passages that hold an answer string."""
    near_duplicate: float = setting(0.8, least=0, most=1)
    """Share of common words from which two passages are the same, so that repeats of a positive or of a
    negative that is taken are left out; 0 = not compared."""
    max_relative_score: float = setting(0.0, least=0)
    """Highest share of the model's score p of the positive: leaves out what scores above p - (1 - this) *
    |p|; 0 = any."""
    absolute_margin: float | None = setting(None, also=("margin",))
    """Leaves out what the model scores above the positive's score less this; absent = any."""
    veto_above: float | None = setting(None, above=0, most=1)
    """Probability of being relevant from which the cross-encoder leaves a passage out; absent = 0.5 where
    there is one."""
    keep_existing: bool = False
    """Keep the hard negatives that the training data have, before the mined ones."""

    def unused(self) -> Iterator[str]:
        yield from super().unused()
        if self.pick != "sample":
            yield "seed"

    def check_together(self, prefix: str) -> None:
        if self.to_rank < self.from_rank:
            raise ConfigError(f"{prefix}to_rank={self.to_rank} is below {prefix}from_rank={self.from_rank}")
        if self.absolute_margin is not None and not math.isfinite(self.absolute_margin):
            raise ConfigError(
                f"{prefix}absolute_margin={self.absolute_margin} is not a number to subtract from a score"
            )

    def highest_score(self, positive_score: float | None) -> float:
        """The score up to which a passage may be a negative; infinite where no rule applies.

        A positive that scores exactly 0 (no word in common, for BM25) says nothing about shares.
        """
        if positive_score is None:
            return float("inf")
        highest = float("inf")
        if self.absolute_margin is not None:
            highest = positive_score - self.absolute_margin
        if self.max_relative_score and positive_score:
            highest = min(highest, positive_score - (1 - self.max_relative_score) * abs(positive_score))
        return highest


@dataclass
class MiningInputs(ForwardSettings, Bm25Settings):
    """Training data, and what is asked about its passages: BM25, a bi-encoder or a cross-encoder."""

    files: list[str] = setting(list, operand="FILE ...", path="input")
    """Training files, folders or patterns; together one data set."""
    out: str | None = setting(None, path="output")
    """File to write; .gz is packed."""
    corpus: str | None = setting(None, path="input")
    """Passages to search and to count words in; absent = those of the training data."""
    model_file: str | None = setting(None, path="input")
    """Checkpoint, run folder, Hugging Face or sentence-transformers folder to search with; absent = BM25."""
    cross_encoder: str | None = setting(None, path="input")
    """Folder of a sequence classifier that reads question and passage together."""
    query_prefix: str = ""
    """Put before every question as it is for model_file, as in training (datasets.<name>.query_prefix);
    prompts are stored."""
    passage_prefix: str = ""
    """The same before every passage; vectors must have been made with it."""
    prompt: str | None = None
    """Name of the model's prompt for these questions (encoder.prompts); without it those of
    encoder.query_prompt."""
    processes: int = setting(1, unit="processes", least=1)
    """Processes that search by BM25 or by vectors, and filter; they share the CPU's cores. With a cross-encoder
    there is one."""
    on_bad_row: str = setting("fail", choices=("fail", "skip"))
    """skip leaves bad rows out and lists them."""
    max_bad_rows: int = setting(100, unit="rows", least=0)
    """How many may be skipped."""
    overwrite: bool = False
    """Replace what is at out."""
    encoder: CheckpointEncoderConfig = field(default_factory=CheckpointEncoderConfig)

    def unused(self) -> Iterator[str]:
        yield from super().unused()
        if not self.model_file:
            yield from _MODEL
            if not self.cross_encoder:
                yield from _MODELS
        if self.on_bad_row != "skip":
            yield "max_bad_rows"

    def check_together(self, prefix: str) -> None:
        super().check_together(prefix)
        require_set(self, {"files": "train.jsonl", "out": "train_mined.jsonl"})


@dataclass
class MiningIndex(Settings):
    """What is searched."""

    kind: str | None = None
    """bm25; with model_file exact, hnsw32, ivf, small, flat, hnsw or hnsw_sq; or a user-defined index,
    module:Class. Absent = the first."""
    options: dict[str, Any] = setting(dict, also=("indexer_options",))
    """Its settings as JSON, e.g. indexer.options='{"store_n": 32}'."""


@dataclass
class MineCommand(MiningInputs, MiningSettings):
    """Adds hard negatives by BM25, or by a model, to training data of any format that dpr prepare knows, and
    prints an audit of them.

    Rerun the same command to resume a killed run; a finished one is not repeated."""

    EXAMPLES: ClassVar[str] = """\
dpr mine train.jsonl out=train_bm25.jsonl
dpr mine train.jsonl corpus=corpus.tsv out=train_bm25.jsonl per_question=10 from_rank=5 to_rank=100 pick=sample
dpr mine train.jsonl corpus=corpus.tsv out=train_dense.jsonl model_file=runs/first max_relative_score=0.95
dpr mine train.jsonl corpus=corpus.tsv out=train_dense.jsonl model_file=runs/first vectors=runs/first/vectors_0 absolute_margin=0.1
dpr mine train.jsonl corpus=corpus.tsv out=train_dense.jsonl model_file=runs/e5 "query_prefix=query: " "passage_prefix=passage: "
dpr mine written/train.jsonl corpus=corpus.tsv out=train_bm25.jsonl keep_within=20
dpr mine train.jsonl corpus=corpus.tsv out=train_dense.jsonl model_file=runs/first cross_encoder=ms-marco-cross-encoder veto_above=0.5
"""
    vectors: list[str] = setting(list, also=("encoded_ctx_files",), path="input")
    """Vectors of the corpus by this model, by dpr embed; again for more; none = they are made."""
    keep_within: int = setting(0, unit="passages", least=0)
    """Leaves out questions for which no positive is among the first so many passages found, to filter what a
    model wrote; 0 = none."""
    indexer: MiningIndex = field(default_factory=MiningIndex)
    cluster: ClusterSettings = field(default_factory=ClusterSettings)

    def unused(self) -> Iterator[str]:
        yield from super().unused()
        if self.model_file:
            yield from _BM25
        else:
            yield "vectors"
        if not self.cross_encoder:
            yield "veto_above"

    def check_together(self, prefix: str) -> None:
        super().check_together(prefix)
        if self.keep_within > self.to_rank:
            raise ConfigError(
                f"keep_within={self.keep_within} is above to_rank={self.to_rank}, the last rank that is"
                " searched"
            )
        if self.cluster.kind != "none" and self.processes > 1:
            raise ConfigError(
                f"processes={self.processes} and cluster=ray are mutually exclusive; cluster.workers limits"
                " its workers"
            )


@dataclass
class ScoreCommand(MiningInputs):
    """Adds a teacher_score to every passage of training data of any format that dpr prepare knows, and prints
    what they are like.

    The teacher is a cross-encoder (its log-odds), a bi-encoder (its scores), BM25, or a hybrid of the last
    two. Rerun the same command to resume a killed run; a finished one is not repeated."""

    EXAMPLES: ClassVar[str] = """\
dpr score train.jsonl out=train_scored.jsonl cross_encoder=ms-marco-cross-encoder
dpr score train.jsonl out=train_scored.jsonl model_file=runs/large
dpr score train.jsonl out=train_scored.jsonl corpus=corpus.tsv processes=2
dpr score train.jsonl out=train_scored.jsonl corpus=corpus.tsv model_file=runs/first hybrid=linear
"""
    hybrid: str = setting("none", choices=("none", "linear"))
    """linear: the weighted sum of model_file's and BM25's scores by which dpr retrieve hybrid=linear
    ranks."""
    hybrid_weight: float = setting(DEFAULT_WEIGHT, least=0, most=1)
    """The model's share in it."""
    hybrid_depth: int = setting(100, unit="passages", least=1)
    """Passages that each side ranks; one that neither lists has 0."""

    def unused(self) -> Iterator[str]:
        yield from super().unused()
        if self.hybrid == "none":
            yield from ("hybrid_weight", "hybrid_depth")
            if self.cross_encoder or self.model_file:
                yield from (*_BM25, "corpus")
        if self.cross_encoder:
            yield "processes"

    def check_together(self, prefix: str) -> None:
        super().check_together(prefix)
        if self.cross_encoder and self.model_file:
            raise ConfigError(
                "cross_encoder and model_file are mutually exclusive: one teacher scores; leave one of"
                " them out"
            )
        if self.hybrid != "none" and not self.model_file:
            raise ConfigError(f"hybrid={self.hybrid} joins a model with BM25; add model_file=<folder>")
