"""``dpr mine``: hard negatives for a training set, and its audit: how much was left out and why, how negatives
compare with positives, five examples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from dpr.core.logs import get_logger
from dpr.core.records import TrainingSample
from dpr.formats.training_records import sample_to_json
from dpr.formats.training_sets import TrainingSet
from dpr.mining.blocks import BlockJob, Record, quantile_lines, run_job
from dpr.mining.negatives import Mined, PairScorer, as_written, choose_negatives, scored_by, veto
from dpr.mining.search import LexicalSearch, Query, Search
from dpr.mining.settings import MiningSettings

logger = get_logger(__name__)

_COUNTED = (
    "questions",
    "questions without negatives",
    "questions without candidates",
    "questions whose positive is in the corpus",
    "candidates",
    "candidates above the positive",
    "negatives",
    "negatives with a known positive score",
    "negatives above the positive",
)
_NOT_FOUND = "questions left out, since no positive is among the first found"
_LABELS = {
    "score": "score",
    "share_of_positive_score": "score / positive's score",
    "cross_encoder_score": "cross-encoder's score",
}


def mine(
    train: TrainingSet,
    out: Path,
    settings: MiningSettings,
    *,
    search: Search | None = None,
    scorer: PairScorer | None = None,
    corpus: Path | None = None,
    keep_within: int = 0,
    processes: int = 1,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Writes ``train`` with mined hard negatives as JSON lines to ``out``, the audit to ``<out>.audit.json``,
    and returns the audit (``run_job``).

    Mined passages carry ``score``, ``rank`` and ``mined_by``. Positives that are in ``corpus`` get its ids,
    so that training recognises a passage wherever it occurs.

    Args:
        search: BM25 by default.
        scorer: a cross-encoder, which leaves out what it takes to be relevant and scores what is written.
        corpus: passages to mine from; None = those of the training set.
        keep_within: leaves out questions for which no positive is among the first so many passages found; 0 =
            none.

    Raises:
        ConfigError: settings out of range.
    """
    settings.check()
    job = Mining(
        train, out, [search or LexicalSearch()], corpus, scorer, settings=settings, keep_within=keep_within
    )
    audit = run_job(job, processes=processes, overwrite=overwrite)
    _warn_of_few(audit, out)
    return audit


@dataclass
class Mining(BlockJob):
    """Mines a block."""

    settings: MiningSettings = field(default_factory=MiningSettings)
    keep_within: int = 0
    name = "mining"

    def chosen(self) -> dict[str, Any]:
        return {
            "settings": asdict(self.settings),
            "cross_encoder": self.scorer and self.scorer.fingerprint,
            "keep_within": self.keep_within,
        }

    def do_block(self, rows: range) -> tuple[list[Record], Record]:
        settings = self.settings
        corpus = self.corpus
        samples = [self.train[row] for row in rows]
        queries = []
        for sample in samples:
            known = [(corpus.row_of(passage), passage) for passage in sample.positives]
            in_corpus = [row for row, _ in known if row is not None]
            queries.append(
                Query(sample.question, in_corpus, [passage for row, passage in known if row is None])
            )
        found = self.finders[0].find(queries, settings.to_rank)

        counts: Counter[str] = Counter(dict.fromkeys(_COUNTED, 0))
        most = settings.per_question * (1 if self.scorer is None else 2)
        kept: list[TrainingSample] = []
        mined: list[Mined] = []
        scores: list[float | None] = []
        for row, sample, query, one in zip(rows, samples, queries, found, strict=True):
            ids = {corpus.id_at(place) for place in query.positives}
            if self.keep_within and not ids & {key for key, _ in one.hits[: self.keep_within]}:
                counts[_NOT_FOUND] += 1
                continue
            positives = tuple(map(corpus.named, sample.positives))
            existing = tuple(map(corpus.named, sample.hard_negatives)) if settings.keep_existing else ()
            mined.append(
                choose_negatives(
                    one.hits,
                    corpus.passage,
                    positives=[*positives, *map(corpus.named, self.train.known_positives(row))],
                    existing=existing,
                    answers=sample.answers,
                    positive_score=one.positive_score,
                    most=most,
                    settings=settings,
                )
            )
            kept.append(replace(sample, positives=positives, hard_negatives=existing))
            scores.append(one.positive_score)
            counts["questions whose positive is in the corpus"] += bool(ids)
        if self.scorer is not None:
            named = [(sample.question, one) for sample, one in zip(kept, mined, strict=True)]
            veto(named, self.scorer, settings.per_question)
            kept = scored_by(self.scorer, kept)
        records = [self._record(sample, one) for sample, one in zip(kept, mined, strict=True)]
        return records, _audit(kept, mined, scores, counts)

    def _record(self, sample: TrainingSample, mined: Mined) -> Record:
        existing = sample.hard_negatives
        added = tuple(replace(one.passage, teacher_score=as_written(one.log_odds)) for one in mined.negatives)
        record = sample_to_json(replace(sample, hard_negatives=existing + added))
        for entry, one in zip(record["hard_negative_ctxs"][len(existing) :], mined.negatives, strict=True):
            entry.update(score=round(one.score, 4), rank=one.rank, mined_by=self.searches[0].mined_by)
            if one.cross_encoder_score is not None:
                entry["cross_encoder_score"] = round(one.cross_encoder_score, 4)
        return record


def _audit(
    samples: list[TrainingSample],
    mined: list[Mined],
    positive_scores: list[float | None],
    counts: Counter[str],
) -> Record:
    """The statistics of a block, for ``combined``."""
    left_out: Counter[str] = Counter()
    values: dict[str, list[float]] = {name: [] for name in _LABELS}
    example: Record | None = None
    for sample, one, positive_score in zip(samples, mined, positive_scores, strict=True):
        left_out.update(one.left_out)
        counts["questions"] += 1
        counts["questions without negatives"] += not one.negatives
        counts["questions without candidates"] += not one.candidates
        counts["candidates"] += one.candidates
        counts["candidates above the positive"] += one.above_positive
        counts["negatives"] += len(one.negatives)
        for negative in one.negatives:
            values["score"].append(round(negative.score, 4))
            if negative.cross_encoder_score is not None:
                values["cross_encoder_score"].append(round(negative.cross_encoder_score, 4))
            if positive_score is not None:
                counts["negatives with a known positive score"] += 1
                counts["negatives above the positive"] += negative.score > positive_score
            if positive_score is not None and positive_score > 0:  # shares of a negative number say nothing
                values["share_of_positive_score"].append(round(negative.score / positive_score, 4))
        if example is None and one.negatives:
            first = one.negatives[0]
            example = {
                "question": sample.question,
                "positive": sample.positives[0].text[:300],
                "negative": first.passage.text[:300],
                "rank": first.rank,
                "score": round(first.score, 3),
                "positive_score": None if positive_score is None else round(positive_score, 3),
            }
    return {"counts": dict(counts), "left_out": dict(left_out), "values": values, "example": example}


def audit_lines(audit: dict[str, Any]) -> Iterator[str]:
    """The audit as a table for people."""
    counts = audit["counts"]

    def share(count: int, whole: str, what: str) -> str:
        return f"{count:>10,}  {count / max(counts[whole], 1):>6.1%} {what}"

    without = counts["questions without negatives"]
    yield f"{counts['questions']:>10,}  questions, {without:,} of them without negatives"
    if counts.get(_NOT_FOUND):
        yield f"{counts[_NOT_FOUND]:>10,}  {_NOT_FOUND}"
    yield f"{counts['candidates']:>10,}  candidates examined"
    yield share(counts["candidates above the positive"], "candidates", "of them score above the positive")
    for reason, count in _reasons(audit):
        yield share(count, "candidates", f"left out: {reason}")
    yield f"{counts['negatives']:>10,}  negatives written"
    known = "negatives with a known positive score"
    yield share(counts["negatives above the positive"], known, "score above the positive")
    yield from quantile_lines(audit, _LABELS)
    for example in audit["examples"]:
        positive = "" if example["positive_score"] is None else f" {example['positive_score']}"
        yield f"  question  {' '.join(example['question'].split())[:140]}"
        yield f"    positive{positive}: {' '.join(example['positive'].split())[:140]}"
        negative = " ".join(example["negative"].split())[:140]
        yield f"    negative {example['score']} (rank {example['rank']}): {negative}"


def _reasons(audit: dict[str, Any]) -> list[tuple[str, int]]:
    return sorted(audit["left_out"].items(), key=lambda item: -item[1])


def _warn_of_few(audit: dict[str, Any], out: Path) -> None:
    """Warns where at least half of the questions got no negative, or no question is left, and says why."""
    counts = audit["counts"]
    without = counts["questions without negatives"]
    if 2 * without < counts["questions"]:
        return
    reasons = [f"{counts['candidates']:,} candidates"]
    if nothing := counts["questions without candidates"]:
        found = "nothing was found at the ranks that are looked at"
        reasons.append(
            f"for {nothing:,} {found}; BM25 finds only passages that share a word with the question"
        )
    reasons += [f"{count:,} left out: {reason}" for reason, count in _reasons(audit)]
    if counts.get(_NOT_FOUND):
        reasons.append(f"{counts[_NOT_FOUND]:,} {_NOT_FOUND}")
    told = "; ".join(reasons)
    logger.warning(
        "%s: %s of %s questions have no mined negatives (%s)",
        out,
        f"{without:,}",
        f"{counts['questions']:,}",
        told,
    )
