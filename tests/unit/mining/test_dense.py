"""Mining finds what brute force finds, with vectors of a model or with BM25."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from dpr.cli.main import main
from dpr.core.compute_settings import ForwardSettings
from dpr.core.errors import InputError
from dpr.core.records import Passage, plain
from dpr.data.near_duplicates import NEAR_DUPLICATE, jaccard
from dpr.data.words import words_of
from dpr.evaluation.answer_match import has_answer
from dpr.formats.corpora import write_passages
from dpr.formats.stored_training_set import TrainingSet
from dpr.indexer.ranking import SearchResult
from dpr.mining.search import DenseSearch, LexicalSearch, Search, dense_search
from dpr.mining.settings import MiningSettings
from dpr.models.biencoder import BiEncoder
from tests.helpers.tiny import tiny_model
from tests.unit.mining.conftest import bm25_of, mine, records, repeating_corpus, repeating_samples

Scores = Callable[[str, list[Passage]], np.ndarray]


def by_brute_force(row: int, settings: MiningSettings, score: Scores, *, only_in_corpus: bool) -> list[str]:
    """Ids of the negatives of a question: every passage scored, every filter asked about each."""
    samples, passages = repeating_samples(), repeating_corpus()
    sample = samples[row]
    own = [passage for other in samples if other.question == sample.question for passage in other.positives]
    texts = {plain(passage.text) for passage in own}
    in_corpus = {plain(passage.text): passage for passage in passages}
    # a positive's score is that of the corpus's passage where it is there
    judged = [
        in_corpus.get(plain(p.text), p)
        for p in sample.positives
        if not only_in_corpus or plain(p.text) in in_corpus
    ]
    best = max(score(sample.question, judged)) if judged else None
    scores = score(sample.question, passages)
    ranked = sorted(range(len(passages)), key=lambda place: (-scores[place], str(passages[place].id)))
    ranked = [place for place in ranked if scores[place] > 0 or not only_in_corpus]
    taken: list[Passage] = []
    for place in ranked[settings.from_rank - 1 : settings.to_rank]:
        passage, words = passages[place], words_of(passages[place].text)
        refused = [
            plain(passage.text) in texts,
            best is not None
            and bool(settings.max_relative_score)
            and scores[place] > best - (1 - settings.max_relative_score) * abs(best)
            and best != 0,
            any(jaccard(words, words_of(other.text)) >= NEAR_DUPLICATE for other in own + taken),
            bool(sample.answers) and has_answer(sample.answers, passage.text),
        ]
        if not any(refused):
            taken.append(passage)
    return [str(passage.id) for passage in taken[: settings.per_question]]


def dense_scores(model: BiEncoder) -> Scores:
    known: dict[Passage, np.ndarray] = {}

    def score(question: str, passages: list[Passage]) -> np.ndarray:
        if new := [passage for passage in passages if passage not in known]:
            known.update(zip(new, model.encode_passages(new).astype(np.float64), strict=True))
        vectors = np.stack([known[passage] for passage in passages])
        return (vectors @ model.encode_questions([question])[0]).astype(np.float32)

    return score


def lexical_scores() -> Scores:
    index = bm25_of(repeating_corpus())

    @cache
    def found(question: str) -> SearchResult:
        return index.search([question], 1000)

    def score(question: str, passages: list[Passage]) -> np.ndarray:
        values, (ids,) = found(question)
        known = dict(zip(ids, values[0].tolist(), strict=False))
        return np.array([known.get(str(passage.id), 0.0) for passage in passages], dtype=np.float32)

    return score


SETTINGS = [
    MiningSettings(per_question=4),
    MiningSettings(per_question=3, from_rank=4, to_rank=30),
    MiningSettings(per_question=50, max_relative_score=0.9, to_rank=60),
]


@pytest.mark.parametrize(("way", "number"), list(itertools.product(["bm25", "dense"], range(len(SETTINGS)))))
def test_negatives_are_those_of_brute_force(
    tmp_path: Path, train: TrainingSet, corpus_file: Path, model: BiEncoder, way: str, number: int
) -> None:
    settings = SETTINGS[number]
    search: Search = LexicalSearch() if way == "bm25" else DenseSearch(model)
    score = lexical_scores() if way == "bm25" else dense_scores(model)
    if settings.max_relative_score and way == "dense":  # these scores lie close together, far from 0
        settings = replace(settings, max_relative_score=0.99)
    audit = mine(train, tmp_path / "out.jsonl", settings, search=search, corpus=corpus_file)
    expected = [
        by_brute_force(row, settings, score, only_in_corpus=way == "bm25") for row in range(len(train))
    ]
    found = [
        [entry["passage_id"] for entry in record["hard_negative_ctxs"]]
        for record in records(tmp_path / "out.jsonl")
    ]
    assert found == expected
    assert 0 < audit["counts"]["negatives"] == sum(map(len, expected))


@pytest.mark.parametrize("way", ["bm25", "dense"])
def test_entries_carry_score_rank_and_the_model_s_fingerprint(
    tmp_path: Path, train: TrainingSet, corpus_file: Path, model: BiEncoder, way: str
) -> None:
    if way == "bm25":
        search, score, found_by = LexicalSearch(), lexical_scores(), "bm25"
    else:
        search, score, found_by = DenseSearch(model), dense_scores(model), f"dense:{model.fingerprint[:12]}"
    settings = MiningSettings(per_question=3)
    audit = mine(train, tmp_path / "out.jsonl", settings, search=search, corpus=corpus_file)
    passages, above = repeating_corpus(), 0
    ids = {passage.text: passage.id for passage in passages}
    for sample, record in zip(repeating_samples(), records(tmp_path / "out.jsonl"), strict=True):
        scores = dict(zip(ids.values(), score(sample.question, passages).tolist(), strict=True))
        ranked = sorted(scores, key=lambda key: (-scores[key], str(key)))
        best = max(score(sample.question, list(sample.positives)))
        # a positive without an id takes that of the corpus
        assert [entry.get("passage_id") for entry in record["positive_ctxs"]] == [
            ids.get(entry["text"]) for entry in record["positive_ctxs"]
        ]
        for entry in record["hard_negative_ctxs"]:
            assert entry["mined_by"] == found_by
            assert ranked[entry["rank"] - 1] == entry["passage_id"]
            assert entry["score"] == pytest.approx(scores[entry["passage_id"]], abs=1e-3)
            above += entry["score"] > best
    assert audit["counts"]["candidates above the positive"] >= above * (way == "dense")
    assert above > 0 and len(audit["examples"]) == 5


def embed(model_folder: Path, corpus_file: Path, out: Path, *more: str) -> None:
    given = [f"model_file={model_folder}", f"ctx_src={corpus_file}", f"out_file={out}", "device=cpu"]
    assert main(["embed", *given, *more]) == 0


def test_the_command_takes_vectors_made_before_and_a_second_call_does_nothing(
    tmp_path: Path,
    train: TrainingSet,
    corpus_file: Path,
    model_folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for shard in (0, 1):
        more = ["num_shards=2", f"shard_id={shard}", "chunk_size=13"]
        embed(model_folder, corpus_file, tmp_path / "vectors", *more)
    basic = ["mine", str(tmp_path / "train.jsonl"), f"model_file={model_folder}", f"corpus={corpus_file}"]
    basic += ["device=cpu", "max_relative_score=0.9"]
    own, given = tmp_path / "own.jsonl", tmp_path / "given.jsonl"
    assert main([*basic, f"out={own}"]) == 0
    with_vectors = [*basic, f"out={given}", f"vectors={tmp_path}/vectors_*"]
    assert main(with_vectors) == 0
    assert [[e["passage_id"] for e in record["hard_negative_ctxs"]] for record in records(given)] == [
        [e["passage_id"] for e in record["hard_negative_ctxs"]] for record in records(own)
    ]
    first = capsys.readouterr().out
    assert main(with_vectors) == 0
    again = capsys.readouterr()
    assert "nothing to do" in again.err and again.out.splitlines()[-1] == first.splitlines()[-1]


def test_vectors_of_another_model_are_refused(tmp_path: Path, corpus_file: Path, model_folder: Path) -> None:
    embed(model_folder, corpus_file, tmp_path / "vectors")
    foreign = str(tmp_path / "foreign")
    tiny_model(tmp_path / "encoder", seed=1, dtype=torch.float32).save(foreign)
    vectors = [str(tmp_path / "vectors_0")]
    with pytest.raises(InputError, match="vectors of another model"):
        dense_search(foreign, ForwardSettings(device="cpu"), vectors=vectors, corpus=corpus_file)


def test_vectors_in_another_order_than_the_corpus_are_refused(
    tmp_path: Path, train: TrainingSet, corpus_file: Path, model_folder: Path, model: BiEncoder
) -> None:
    from dpr.formats.vector_shards import open_shards

    shuffled = tmp_path / "shuffled.tsv"
    write_passages(shuffled, reversed(repeating_corpus()))
    embed(model_folder, shuffled, tmp_path / "vectors")
    search = DenseSearch(model, shards=open_shards(tmp_path / "vectors_0"))
    with pytest.raises(InputError, match="vector 1 has the id 'd119' where the corpus has 'd0'"):
        mine(train, tmp_path / "out.jsonl", MiningSettings(), search=search, corpus=corpus_file)
