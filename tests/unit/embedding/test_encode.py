"""A text has its vector in any batch; running out of memory costs a warning and smaller batches, not the run."""

import logging
import random
from typing import Any

import numpy as np
import pytest
import torch

from dpr.core.batch import TokenBatch
from dpr.core.errors import InputError
from dpr.core.records import Passage
from dpr.embedding.encode import TokenBudget, encode_tokens, encode_within_memory, tokenize_passages
from dpr.models.biencoder import BiEncoder
from dpr.models.encoder import Encoder
from tests.helpers.tiny import sentence, tiny_model


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)  # tiny batches spend their time in waking threads


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> BiEncoder:
    return tiny_model(tmp_path_factory.mktemp("encoder"), dtype=torch.float32, dropout=0.5)


def passages(count: int) -> list[Passage]:
    rng = random.Random(0)
    return [
        Passage(sentence(rng, rng.randint(1, 30)), sentence(rng, 2) if rng.random() < 0.5 else "", str(row))
        for row in range(count)
    ]


def test_vectors_are_the_towers_in_the_order_given(model: BiEncoder) -> None:
    texts = passages(50)
    tokens = tokenize_passages(model.tensorizer, texts)
    for encoder_type, tower in (("ctx", model.ctx_model), ("question", model.question_model)):
        found = encode_tokens(model, tokens, encoder_type=encoder_type, batch_tokens=200)
        with torch.no_grad():
            one_by_one = [
                tower.eval()(tokenize_passages(model.tensorizer, [text]))[0].numpy() for text in texts
            ]
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, np.stack(one_by_one), atol=1e-5)
    assert np.abs(encode_tokens(model, tokens, batch_tokens=200) - found).max() > 0.1, "two towers"


def test_a_text_has_the_same_vector_in_any_batch(model: BiEncoder) -> None:
    texts = passages(64)
    expected = encode_tokens(model, tokenize_passages(model.tensorizer, texts), batch_tokens=1 << 20)
    order = random.Random(1).sample(range(64), 64)
    shuffled = tokenize_passages(model.tensorizer, [texts[row] for row in order])
    for batch_size in (1, 7, 64):
        found = encode_tokens(model, shuffled, batch_tokens=1 << 20, batch_size=batch_size)
        np.testing.assert_allclose(found, expected[order], atol=1e-5)
        np.testing.assert_array_equal(
            found, encode_tokens(model, shuffled, batch_tokens=1 << 20, batch_size=batch_size)
        )


def test_batches_keep_to_their_limits(model: BiEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[tuple[int, int]] = []
    real = model.ctx_model.forward
    monkeypatch.setattr(
        model.ctx_model,
        "forward",
        lambda batch: sizes.append((len(batch), int(batch.lengths.max()))) or real(batch),
    )
    tokens = tokenize_passages(model.tensorizer, passages(60))
    encode_tokens(model, tokens, batch_tokens=100)
    assert max(count * longest for count, longest in sizes) <= 100
    assert max(count for count, _ in sizes) > 5, "short texts share a batch"
    sizes.clear()
    encode_tokens(model, tokens, batch_tokens=100, batch_size=3)
    assert max(count for count, _ in sizes) == 3
    sizes.clear()
    encode_tokens(model, tokens, batch_tokens=1)
    assert [count for count, _ in sizes] == [1] * 60, "a text longer than the budget still gets through"


def test_dropout_is_off_and_the_mode_is_restored(model: BiEncoder) -> None:
    tokens = tokenize_passages(model.tensorizer, passages(5))
    model.train()
    try:
        first, second = (encode_tokens(model, tokens, batch_tokens=500) for _ in range(2))
        assert model.training
        assert model.ctx_model.training
        with torch.no_grad():
            with_dropout = model.ctx_model(tokens).numpy()
    finally:
        model.eval()
    np.testing.assert_array_equal(first, second)
    assert np.abs(with_dropout - first).max() > 0.1, "the model has no dropout that could have been on"


def test_half_precision_changes_little_and_returns_float32(model: BiEncoder) -> None:
    tokens = tokenize_passages(model.tensorizer, passages(8))
    exact, half = (
        encode_tokens(model, tokens, batch_tokens=500, precision=precision) for precision in ("fp32", "bf16")
    )
    assert half.dtype == np.float32
    assert 0 < np.abs(exact - half).max() < 0.1


def test_passages_without_text_are_encoded_by_title_or_as_empty_sequences(model: BiEncoder) -> None:
    tokenizer = model.tensorizer.tokenizer
    tokens = tokenize_passages(model.tensorizer, [Passage(""), Passage("  ", "ba"), Passage("ba")])
    cls, sep, word = tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.convert_tokens_to_ids("ba")
    assert tokens.tokens.tolist() == [cls, sep, cls, word, sep, sep, cls, word, sep]
    assert np.isfinite(encode_tokens(model, tokens, batch_tokens=500)).all()


def test_tokens_do_not_depend_on_how_many_passages_are_listed_at_a_time(
    model: BiEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = passages(50)
    whole = tokenize_passages(model.tensorizer, texts)
    monkeypatch.setattr("dpr.embedding.encode._LISTED_PASSAGES", 7)
    parts = tokenize_passages(model.tensorizer, texts)
    assert parts.tokens.tolist() == whole.tokens.tolist()
    assert parts.lengths.tolist() == whole.lengths.tolist()
    assert len(tokenize_passages(model.tensorizer, [])) == 0


CPU = RuntimeError(
    "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to"
    " allocate 9 bytes."
)
CUDA = torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB.")


def limit_memory(monkeypatch: Any, most: int, error: Exception = CPU) -> list[int]:
    """Towers fail over more than ``most`` padded tokens; returns the sizes they are asked for."""
    asked: list[int] = []
    real = Encoder.forward

    def limited(self: Encoder, batch: TokenBatch) -> torch.Tensor:
        asked.append(batch.padded_size)
        if batch.padded_size > most:
            raise error
        return real(self, batch)

    monkeypatch.setattr(Encoder, "forward", limited)
    return asked


def batch(*lengths: int) -> TokenBatch:
    rng = random.Random(0)
    return TokenBatch.from_lists([[rng.randint(11, 90) for _ in range(length)] for length in lengths])


@pytest.mark.parametrize("error", [CPU, CUDA], ids=["cpu", "cuda"])
def test_the_budget_is_halved_until_it_fits_and_stays(
    model: BiEncoder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    tokens, budget = batch(*[16] * 64, *[5] * 40), TokenBudget(8192)
    expected = encode_tokens(model, tokens, batch_tokens=208)
    asked = limit_memory(monkeypatch, 300, error)
    with caplog.at_level(logging.WARNING, "dpr"):
        found = encode_within_memory(model, tokens, budget)
        assert budget.tokens == 208, "half of the 104 x 16 tokens that were tried, three times"
        trials = [size for size in asked if size > 300]
        assert len(trials) == 3, "halving begins at what was tried, not at a budget that nothing filled"
        encode_within_memory(model, tokens, budget)
    assert [size for size in asked if size > 300] == trials, "tried again with what had failed"
    assert [record.getMessage() for record in caplog.records] == [
        "out of memory with 8192 tokens per forward pass; continuing with 208. Set batch_tokens=208 to start"
        " there"
    ]
    np.testing.assert_array_equal(found, expected)


def test_one_sequence_that_does_not_fit_is_an_error_with_its_length(
    model: BiEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_memory(monkeypatch, 20)
    with pytest.raises(
        InputError,
        match=r"one sequence of 24 tokens does not fit into the memory of device cpu; .*precision=bf16",
    ):
        encode_within_memory(model, batch(24, 5, 5, 5), TokenBudget(4096))


def test_other_errors_of_the_model_stay_as_they_are(
    model: BiEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_memory(monkeypatch, 1, RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        encode_within_memory(model, batch(24, 5), TokenBudget(4096))
