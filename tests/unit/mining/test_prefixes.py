"""A model that was trained with prefixes is searched, embedded and mined with the same tokens, from the
command line too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpr.cli.main import main
from dpr.core.batch import TokenBatch
from dpr.core.records import TrainingSample
from dpr.data.collator import Collator, DataRow
from dpr.data.settings import DataSetSettings
from dpr.formats.training_sets import TrainingSet
from dpr.formats.vector_shards import open_shards
from dpr.mining import dense
from dpr.models.biencoder import BiEncoder
from dpr.retrieval import retrievers
from tests.unit.mining.conftest import repeating_corpus, repeating_samples

QUERY, PASSAGE = "ca ce ", "ci c"  # with a space at the end, and without


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[TokenBatch]:
    """What mining and retrieval give a model to encode."""
    tokens: list[TokenBatch] = []
    for module in (dense, retrievers):
        real = module.encode_tokens

        def recording(model: BiEncoder, batch: TokenBatch, real: Any = real, **options: Any) -> np.ndarray:
            tokens.append(batch)
            return real(model, batch, **options)  # type: ignore[no-any-return]

        monkeypatch.setattr(module, "encode_tokens", recording)
    return tokens


def sequences(batch: TokenBatch) -> list[list[int]]:
    return [tokens.tolist() for tokens in batch.tokens.split(batch.lengths.tolist())]


def in_training(model: BiEncoder, samples: list[TrainingSample]) -> tuple[list[list[int]], list[list[int]]]:
    """Tokens of questions and of first positives as training makes them."""
    options = DataSetSettings(query_prefix=QUERY, passage_prefix=PASSAGE)
    collator = Collator(model.tensorizer, num_hard=0, num_other=0)
    batch = collator(
        [DataRow(sample, row, sample.positives[:1], "set", options) for row, sample in enumerate(samples)]
    )
    contexts = sequences(batch.contexts)
    return sequences(batch.questions), [contexts[place] for place in batch.context_row.tolist()]


def mine(folder: Path, model_folder: Path, corpus_file: Path, *more: str) -> int:
    arguments = [
        f"corpus={corpus_file}",
        f"out={folder}/out.jsonl",
        f"model_file={model_folder}",
        "device=cpu",
    ]
    return main(["mine", str(folder / "train.jsonl"), *arguments, *more])


def test_training_retrieval_and_mining_give_the_model_the_same_tokens(
    tmp_path: Path,
    train: TrainingSet,
    corpus_file: Path,
    model_folder: Path,
    model: BiEncoder,
    seen: list[TokenBatch],
) -> None:
    questions, _ = in_training(model, repeating_samples())
    assert questions != model.tensorizer.question_tokens([sample.question for sample in repeating_samples()])
    prefixes = [f"query_prefix={QUERY}", f"passage_prefix={PASSAGE}"]
    assert mine(tmp_path, model_folder, corpus_file, *prefixes) == 0
    assert sequences(seen[0]) == questions
    texts = {passage.text for passage in repeating_corpus()}
    outside = [sample for sample in repeating_samples() if sample.positives[0].text not in texts]
    assert outside
    positives = {tuple(tokens) for tokens in in_training(model, outside)[1]}
    assert positives <= {tuple(tokens) for batch in seen[1:] for tokens in sequences(batch)}

    seen.clear()
    (tmp_path / "questions.jsonl").write_text(
        "".join(json.dumps({"question": s.question}) + "\n" for s in repeating_samples())
    )
    source = [f"ctx_sources.own.file={corpus_file}", f"ctx_sources.own.passage_prefix={PASSAGE}"]
    vectors = tmp_path / "vectors"
    assert (
        main(
            [
                "embed",
                f"model_file={model_folder}",
                "ctx_src=own",
                f"out_file={vectors}",
                "device=cpu",
                *source,
            ]
        )
        == 0
    )
    question_set = [
        f"datasets.own.file={tmp_path}/questions.jsonl",
        f"datasets.own.query_prefix={QUERY}",
        "qa_dataset=own",
    ]
    searched = [
        f"model_file={model_folder}",
        f"encoded_ctx_files=[{vectors}_0]",
        f"trec_run_file={tmp_path}/own.run",
        "device=cpu",
    ]
    assert main(["retrieve", *question_set, *searched]) == 0
    assert [tokens for batch in seen for tokens in sequences(batch)] == questions

    _, contexts = in_training(model, [TrainingSample("ba", (passage,)) for passage in repeating_corpus()])
    found = np.concatenate([part for shard in open_shards(f"{vectors}_0") for _, part in shard.chunks()])
    expected = dense.encode_tokens(
        model, TokenBatch.from_lists(contexts), encoder_type="ctx", batch_tokens=4096
    )
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_vectors_with_and_without_the_prefix_are_not_mixed(
    tmp_path: Path,
    train: TrainingSet,
    corpus_file: Path,
    model_folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = [f"ctx_sources.own.file={corpus_file}", f"ctx_sources.own.passage_prefix={PASSAGE}"]
    embedded = [f"out_file={tmp_path}/vectors", "device=cpu"]
    assert main(["embed", f"model_file={model_folder}", "ctx_src=own", *embedded, *source]) == 0
    given = [f"vectors={tmp_path}/vectors_0", f"query_prefix={QUERY}"]
    assert mine(tmp_path, model_folder, corpus_file, *given) == 3
    assert f"made with passage_prefix={PASSAGE!r}" in capsys.readouterr().err
    assert mine(tmp_path, model_folder, corpus_file, *given, f"passage_prefix={PASSAGE}") == 0
    by_given = (tmp_path / "out.jsonl").read_bytes()
    # Another prefix is another result, which is not taken for this one.
    assert mine(tmp_path, model_folder, corpus_file, "query_prefix=ba ", f"passage_prefix={PASSAGE}") == 3
    assert "exists already" in capsys.readouterr().err
    (tmp_path / "out.jsonl").unlink()
    assert (
        mine(tmp_path, model_folder, corpus_file, f"query_prefix={QUERY}", f"passage_prefix={PASSAGE}") == 0
    )
    assert (tmp_path / "out.jsonl").read_bytes() == by_given
