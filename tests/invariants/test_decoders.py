"""A decoder read at its end token has one gradient over processes, in chunks, packed or padded, with adapters too."""

from typing import Any

import pytest
import torch
from transformers import Starcoder2Config

from tests.helpers.adapters import randomize_adapters
from tests.helpers.decoders import VOCABULARY, byte_tokenizer
from tests.helpers.processes import run_on_ranks
from tests.helpers.training import assert_near
from tests.invariants.test_one_gradient import TOLERANCE, every_case

SETTINGS = {"pooling": "last", "append_eos": True, "normalize": True, "sequence_length": 40}
DIRECT: dict[str, Any] = {"settings": SETTINGS, "options": {"temperature": 0.05}}
ADAPTERS: dict[str, Any] = {
    **DIRECT,
    "settings": {**SETTINGS, "adapter": "lora", "lora_rank": 4},
    "prepare": randomize_adapters,
}
CASES: dict[str, dict[str, Any]] = {"direct": DIRECT, "adapters": ADAPTERS}
CASES |= {f"{name}, cached": {**case, "grad_cache_tokens": 100} for name, case in list(CASES.items())}
CASES |= {
    f"{name}, padded": {**case, "options": {**case["options"], "packed": False}}
    for name, case in list(CASES.items())
}


@pytest.fixture(scope="module")
def by_world_size(
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[int, list[dict[str, dict[str, torch.Tensor]]]]:
    """A StarCoder2 with windows and shared keys, whose norms compute in the precision of the weights."""
    pytest.importorskip("peft")
    folder = tmp_path_factory.mktemp("decoder")
    byte_tokenizer().save_pretrained(str(folder))
    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 48,
    }
    Starcoder2Config(
        **sizes, vocab_size=len(VOCABULARY), max_position_embeddings=64, sliding_window=8
    ).save_pretrained(str(folder))
    return {world_size: run_on_ranks(every_case, world_size, folder, CASES) for world_size in (1, 2)}


@pytest.mark.parametrize("name", CASES)
def test_the_gradient_is_that_of_one_process_at_once_without_chunks(
    by_world_size: dict[int, Any], name: str
) -> None:
    expected = by_world_size[1][0][name.split(",")[0]]
    assert max(float(tensor.norm()) for key, tensor in expected.items() if "." in key) > 1e-4
    for world_size, ranks in by_world_size.items():
        for results in ranks:
            assert_near(results[name], expected, TOLERANCE, f"of {world_size} ranks")
