"""Pre-training is one function of its pool: 1, 2 and 3 processes, direct and cached, packed and padded, whole and sharded; and its losses
are the formulas of the papers.

pytest tests/invariants/test_pretraining.py
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dpr.core.batch import BiEncoderBatch, TokenBatch
from dpr.core.distributed import current_ranks, sum_over_ranks
from dpr.data.collator import Collator
from dpr.data.iterators import MultiSetDataIterator, ShardedDataIterator
from dpr.data.loader import PoolDataset
from dpr.data.pseudo_pairs import PseudoPairs
from dpr.data.settings import DataSetSettings
from dpr.losses.nll import BiEncoderNllLoss
from dpr.models.biencoder import BiEncoder, TowerOptions
from dpr.models.fast import packed
from dpr.models.pretraining import Guesses, PretrainingHeads
from dpr.models.trials import padded_states
from dpr.training.compute import make_step
from dpr.training.pretraining import PretrainingLoss
from dpr.training.settings import TrainSettings
from tests.helpers.processes import run_on_ranks
from tests.helpers.tiny import WORDS, encoder_folder, tiny_model

POOL, KEY = 12, 4711
TOLERANCE = 1e-11
CPU = torch.device("cpu")

CASES: dict[str, dict[str, Any]] = {
    "direct, packed": {},
    "direct, padded": {"packed": False},
    "cached, packed": {"cached": 40},
    "cached, padded": {"cached": 40, "packed": False},
    "tokens alone": {"weight": 0.0, "decoder_share": 0.0, "kinds": "(whole)"},
    "tokens alone, cached": {"weight": 0.0, "decoder_share": 0.0, "kinds": "(whole)", "cached": 40},
    "no decoder, cls": {"decoder_share": 0.0, "pooling": "cls"},
    "a fifth of a pair": {"weight": 0.2},
    "two pools a step": {"num_pools": 2},
    "layers computed again": {"checkpointed": True},
}
SAME = {"direct, padded": "direct, packed", "cached, packed": "direct, packed", "cached, padded": "direct, packed"}
SAME |= {"tokens alone, cached": "tokens alone", "layers computed again": "direct, packed"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pretraining")
    encoder_folder(folder / "encoder")
    generator = torch.Generator().manual_seed(3)
    lines = ["id\ttext\ttitle"]
    for number in range(40):
        words = torch.randint(len(WORDS), (int(torch.randint(3, 18, (), generator=generator)),), generator=generator).tolist()
        lines.append(f"{number}\t{' '.join(WORDS[word] for word in words)}\t{WORDS[number] if number % 3 else ''}")
    lines += [line.replace(f"{number}\t", f"{number + 100}\t", 1) for number, line in enumerate(lines[1:4])]  # texts that are there twice
    (folder / "corpus.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def make_model(
    folder: Path, *, decoder_share: float = 0.5, pooling: str = "mean", is_packed: bool = True
) -> tuple[BiEncoder, PretrainingHeads]:
    options = TowerOptions(temperature=0.5, packed=is_packed)
    model = tiny_model(folder / "encoder", options=options, shared=True, pooling=pooling, normalize=pooling == "mean")
    tower = model.question_model
    torch.manual_seed(7)
    tower.heads = PretrainingHeads(tower, model.tensorizer.tokenizer, share=0.3, decoder_share=decoder_share)
    tower.heads.key = KEY
    nn.init.normal_(tower.heads.bias)
    return model.double().train(), tower.heads


def pool_batch(folder: Path, model: BiEncoder, kinds: str, pool: int = 0) -> BiEncoderBatch:
    source, ranks = PseudoPairs(folder / "corpus.tsv", kinds=kinds), current_ranks()
    order = ShardedDataIterator(len(source), global_batch_size=POOL, seed=5, rank=ranks.rank, world_size=ranks.world_size)
    collator = Collator(model.tensorizer, num_hard=0, num_other=0, seed=5)
    collator.joins_equal = False
    return PoolDataset([(source, DataSetSettings())], MultiSetDataIterator([order], seed=5), collator)[1, pool]


def gradient_of_a_step(folder: Path, case: dict[str, Any], sharding: str = "none") -> dict[str, Tensor]:
    """Loss of the pairs, sums of the heads' losses and the gradient of one step, as every rank of a group sees them."""
    is_packed, num_pools = case.get("packed", True), case.get("num_pools", 1)
    model, heads = make_model(
        folder, decoder_share=case.get("decoder_share", 0.5), pooling=case.get("pooling", "mean"), is_packed=is_packed
    )
    ranks = current_ranks()
    loss = PretrainingLoss(heads, BiEncoderNllLoss(), weight=case.get("weight", 1.0), num_pools=num_pools)
    settings = TrainSettings(grad_cache_tokens=case.get("cached", 0), sharding=sharding)
    if case.get("checkpointed"):
        from dpr.models.fast.compilation import checkpoint_activations

        checkpoint_activations(model.trained_towers())
    step = make_step(model, loss, settings, ranks=ranks, device=CPU)
    pair_loss = torch.zeros((), dtype=torch.float64)
    for pool in range(num_pools):
        batch = pool_batch(folder, model, case.get("kinds", "mixed"), pool)
        pair_loss += sum_over_ranks(step(batch, num_pools=num_pools, is_last=pool == num_pools - 1).loss_sum) / POOL
    found = {"pair loss": pair_loss, "heads": sum_over_ranks(heads.sums)}
    for name, parameter in model.named_parameters():
        gradient: Any = parameter.grad
        if gradient is not None:
            found[name] = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient.clone()
    return found


def every_case(folder: Path, sharding: str = "none") -> dict[str, dict[str, Tensor]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed, "CPU_FORWARD_TOKENS", 60)
        cases = {name: case for name, case in CASES.items() if sharding == "none" or case.get("packed", True)}
        return {name: gradient_of_a_step(folder, case, sharding) for name, case in cases.items()}


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, dict[str, Tensor]]:
    return every_case(folder)


@pytest.mark.parametrize(("world_size", "sharding"), [(2, "none"), (3, "none"), (2, "fsdp2")])
def test_loss_and_gradient_are_those_of_one_process(folder: Path, alone: Any, world_size: int, sharding: str) -> None:
    for rank, results in enumerate(run_on_ranks(every_case, world_size, folder, sharding)):
        for name, found in results.items():
            assert found.keys() == alone[name].keys()
            for key, expected in alone[name].items():
                torch.testing.assert_close(found[key], expected, rtol=0, atol=TOLERANCE, msg=f"{name}: {key} on rank {rank}")


@pytest.mark.parametrize("name", SAME)
def test_ways_to_compute_it_agree(alone: Any, name: str) -> None:
    for key, expected in alone[SAME[name]].items():
        torch.testing.assert_close(alone[name][key], expected, rtol=0, atol=TOLERANCE, msg=f"{name}: {key}")


def test_every_weight_learns(alone: Any) -> None:
    for key, gradient in alone["direct, packed"].items():
        assert gradient.abs().max() > 0 or key.endswith("self.key.bias"), key  # attention ignores what is added to all keys


def masked_texts(folder: Path, heads: PretrainingHeads, model: BiEncoder) -> tuple[TokenBatch, Guesses, Guesses]:
    texts = pool_batch(folder, model, "(whole)").contexts
    texts = texts.select(torch.argsort(texts.lengths, descending=True))
    return texts, heads.maskings[0](texts, KEY), heads.maskings[1](texts, KEY + 1)


def step_on_texts(folder: Path, model: BiEncoder, heads: PretrainingHeads) -> None:
    loss = PretrainingLoss(heads, BiEncoderNllLoss(), weight=0.0, num_pools=1)
    step = make_step(model, loss, TrainSettings(), ranks=current_ranks(), device=CPU)
    step(pool_batch(folder, model, "(whole)"), num_pools=1, is_last=True)


def test_guessing_tokens_is_what_transformers_computes(folder: Path) -> None:
    """Loss and gradient of BertForMaskedLM on the padded batch, with the same masks."""
    from transformers import BertForMaskedLM

    model, heads = make_model(folder, decoder_share=0.0)
    _, guesses, _ = masked_texts(folder, heads, model)
    theirs = BertForMaskedLM(copy.deepcopy(model.question_model.config)).double().train()
    theirs.bert.load_state_dict(model.question_model.backbone.state_dict())
    head = theirs.cls.predictions
    with torch.no_grad():
        for mine, other in ((heads.dense, head.transform.dense), (heads.norm, head.transform.LayerNorm)):
            other.load_state_dict(mine.state_dict())
        head.bias.copy_(heads.bias)
    input_ids, mask = guesses.batch.padded(0)
    labels = torch.full_like(guesses.batch.tokens, -100).index_copy(0, guesses.places, guesses.targets)
    padded = torch.full_like(input_ids, -100)
    padded[mask] = labels
    result = theirs(input_ids=input_ids, attention_mask=mask.long(), labels=padded)
    result.loss.backward()
    step_on_texts(folder, model, heads)
    total, _, count = heads.sums[0].tolist()
    assert total / count == pytest.approx(float(result.loss.detach()), abs=1e-12)
    backbone = dict(model.question_model.backbone.named_parameters())
    for name, parameter in theirs.bert.named_parameters():
        torch.testing.assert_close(backbone[name].grad, parameter.grad, rtol=0, atol=1e-12, msg=name)
    torch.testing.assert_close(heads.dense.weight.grad, head.transform.dense.weight.grad, rtol=0, atol=1e-12)
    torch.testing.assert_close(heads.bias.grad, head.bias.grad, rtol=0, atol=1e-12)


def test_the_decoder_is_the_formula_of_retromae(folder: Path) -> None:
    """A layer over [vector, e(x_1) + p_1, ..., e(x_n) + p_n] of the text masked anew; minus the mean of log p(x_i) over what is masked."""
    model, heads = make_model(folder, pooling="cls")
    texts, guesses, hidden = masked_texts(folder, heads, model)
    backbone, decoder = model.question_model.backbone, heads.decoder
    states = padded_states(backbone, guesses.batch)
    starts = torch.cumsum(texts.lengths, 0) - texts.lengths
    logits = []
    for start, length in zip(starts.tolist(), texts.lengths.tolist(), strict=True):
        words = backbone.get_input_embeddings()(hidden.batch.tokens[start : start + length])
        words = torch.cat([states[start][None], words[1:]])
        logits.append(decoder(inputs_embeds=words[None]).last_hidden_state[0])
    guessed = heads.norm(nn.functional.gelu(heads.dense(torch.cat(logits)[hidden.places])))
    logp = torch.log_softmax(guessed @ backbone.get_input_embeddings().weight.T + heads.bias, dim=1)
    expected = -logp.gather(1, hidden.targets[:, None]).mean()
    of_tokens = heads.norm(nn.functional.gelu(heads.dense(states[guesses.places])))
    of_tokens = torch.log_softmax(of_tokens @ backbone.get_input_embeddings().weight.T + heads.bias, dim=1)
    whole = expected - of_tokens.gather(1, guesses.targets[:, None]).mean()
    gradients = torch.autograd.grad(whole, list(model.parameters()), allow_unused=True)
    step_on_texts(folder, model, heads)
    total, _, count = heads.sums[1].tolist()
    assert total / count == pytest.approx(float(expected.detach()), abs=1e-12)
    for (name, parameter), gradient in zip(model.named_parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=0, atol=1e-12, msg=name)
