"""Heads that a tower is pre-trained with on text alone: it guesses masked tokens (Devlin et al., 2019), and a decoder of one layer restores
a heavily masked copy of the text from its vector (RetroMAE, Xiao et al., 2022).

Which tokens are masked is a function of (seed, step, the text's tokens): the same on any number of ranks, in chunks, packs and padding. A
tower's losses reach backward with its vectors (``_Attached``), so every step that trains vectors trains the heads too.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from dpr.core.batch import TokenBatch, on_device, spread
from dpr.core.errors import ConfigError, first_line
from dpr.models.backbones import backbone_from_config
from dpr.models.fast.packed import accelerate, token_states
from dpr.models.trials import FAILURES, pad_id, padded_states

if TYPE_CHECKING:
    from dpr.models.encoder import Encoder

HEADS = "question_model.heads."
"""How the names of their weights begin in a checkpoint of a run that pre-trains. Models are opened without them."""
SHORTEST = 5
"""Texts of fewer tokens are not masked."""
_MASKED, _RANDOM = 0.8, 0.1
"""Shares of the chosen tokens that become [MASK], and a random token; the others stay, and are guessed all the same."""
_LOGITS = {"cpu": 1 << 22, "cuda": 1 << 26}
"""How many are held at a time; each guess has one for each token of the vocabulary."""
_WORD = (1 << 32) - 1


class Guesses(NamedTuple):
    """A batch with masked tokens: the places (M,) of those that are to be guessed, and what stood there (M,)."""

    batch: TokenBatch
    places: Tensor
    targets: Tensor


@dataclass(frozen=True)
class Masking:
    """Chooses a share of the tokens of each text, rounded, special tokens last, and hides them as BERT does."""

    share: float
    mask_id: int
    special_ids: tuple[int, ...]
    vocab_size: int

    def count(self, lengths: Tensor) -> Tensor:
        """How many tokens of each text (N,) are chosen, from the lengths alone, which lie on the host."""
        return ((lengths - 2) * self.share + 0.5).floor().to(torch.int64) * (lengths >= SHORTEST)

    def __call__(self, batch: TokenBatch, key: int) -> Guesses:
        """The batch with masked tokens; equal texts are masked alike under one ``key``."""
        tokens, device = batch.tokens, batch.tokens.device
        row, position = spread(torch.arange(len(batch)), batch.lengths, device), batch.positions()
        text = torch.zeros(len(batch), dtype=torch.int64, device=device).index_add_(0, row, _mixed(tokens * 65_537 + position + key))
        drawn = _mixed(_mixed(text)[row] + position)
        is_special = torch.isin(tokens, on_device(torch.tensor(self.special_ids), device))
        # The tokens of each text in the order of what they drew; its first ones are chosen. How many follows from lengths on the host.
        order = torch.argsort((row << 33) + (is_special.to(torch.int64) << 32) + drawn, stable=True)
        counts = self.count(batch.lengths)
        starts = torch.cumsum(batch.lengths, 0) - batch.lengths
        places = order[spread(starts + counts - torch.cumsum(counts, 0), counts, device) + torch.arange(int(counts.sum()), device=device)]
        kind, targets = _mixed(drawn[places] + 1), tokens[places]
        hidden = torch.where(kind < int((_MASKED + _RANDOM) * _WORD), _mixed(kind) % self.vocab_size, targets)
        hidden = torch.where(kind < int(_MASKED * _WORD), self.mask_id, hidden)
        return Guesses(TokenBatch(tokens.index_copy(0, places, hidden), batch.lengths, batch.position), places, targets)


def _mixed(values: Tensor) -> Tensor:
    """Numbers of 32 bits that look random, each a function of one of ``values``; no product leaves 63 bits."""
    values = (values ^ (values >> 32)) & _WORD
    for factor in (0x7FEB352D, 0x2C1B3C6D, 0x297A2D39):
        values = ((values ^ (values >> 16)) * factor) & _WORD
    return values ^ (values >> 15)


class _CrossEntropy(torch.autograd.Function):
    """The sum of -log softmax(states @ table.T + bias)[target], and how many targets have the highest logit.

    Logits are made block by block, and so are their gradients at once: memory is that of a block, and nothing is computed twice.
    """

    @staticmethod
    def forward(ctx: Any, states: Tensor, table: Tensor, bias: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        dtype, weights = torch.promote_types(states.dtype, torch.float32), table.to(states.dtype)
        of_states, of_table, of_bias = torch.empty_like(states), torch.zeros_like(table), torch.zeros_like(bias)
        loss, correct = states.new_zeros((), dtype=dtype), torch.zeros((), dtype=torch.int64, device=states.device)
        size = max(1, _LOGITS.get(states.device.type, 1 << 26) // len(table))
        for start in range(0, len(states), size):
            rows = slice(start, start + size)
            target = targets[rows, None]
            logits = torch.addmm(bias.to(states.dtype), states[rows], weights.T).to(dtype)
            correct += (logits.gather(1, target) == logits.amax(1, keepdim=True)).sum()
            logits = torch.log_softmax(logits, dim=1)
            loss -= logits.gather(1, target).sum()
            gradient = logits.exp_().scatter_add_(1, target, -torch.ones_like(target, dtype=dtype))
            of_bias += gradient.sum(0)
            gradient = gradient.to(states.dtype)
            of_states[rows] = gradient @ weights
            of_table += gradient.T @ states[rows]
        ctx.save_for_backward(of_states, of_table, of_bias)
        ctx.mark_non_differentiable(correct)
        return loss, correct

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return (*(of_part * gradients[0].to(of_part.dtype) for of_part in ctx.saved_tensors), None)


class _Attached(torch.autograd.Function):
    """Vectors as they are. Whatever their gradient, backward also differentiates ``losses`` (2,), times the ``shares`` that the heads hold
    by then, and adds ``counted`` (2, 3) to their ``sums``."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, losses: Tensor, counted: Tensor, heads: PretrainingHeads) -> Tensor:
        ctx.heads, ctx.counted, ctx.dtype = heads, counted, losses.dtype
        return vectors.view_as(vectors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        ctx.heads.sums = ctx.heads.sums.to(ctx.counted.device) + ctx.counted
        return gradients[0], ctx.heads.shares.to(gradients[0].device, ctx.dtype), None, None


class PretrainingHeads(nn.Module):
    """What a tower is pre-trained with: the head that guesses tokens, tied to the word table, and, with ``decoder_share``, the decoder.

    ``key`` and ``shares`` (2,) are set for each micro-batch: what decides which tokens are masked, and how much the sums of the losses of
    tower and decoder count for in the objective. ``sums`` (2, 3) has, for each of the two, the sum of the losses so far, right guesses, and
    guesses.

    Raises:
        ConfigError: the tokenizer has no [MASK], or the tower cannot be pre-trained.
    """

    def __init__(self, tower: Encoder, tokenizer: Any, *, share: float, decoder_share: float) -> None:
        super().__init__()
        config, table = tower.config, tower.backbone.get_input_embeddings().weight
        if tokenizer.mask_token_id is None:
            raise ConfigError("encoder.pretrained_model_cfg: its tokenizer has no mask token, which pre-training puts in place of words")
        ids = int(tokenizer.mask_token_id), tuple(sorted(set(tokenizer.all_special_ids)))
        self.maskings = tuple(Masking(each, *ids, len(tokenizer)) for each in (share, decoder_share))
        self.dense, self.norm = nn.Linear(int(config.hidden_size), table.shape[1]), nn.LayerNorm(table.shape[1], eps=1e-12)
        nn.init.normal_(self.dense.weight, std=getattr(config, "initializer_range", 0.02))
        nn.init.zeros_(self.dense.bias)
        self.bias = nn.Parameter(torch.zeros(len(table)))
        self.decoder = _decoder_of(tower) if decoder_share else None
        self.key, self.shares, self.sums = 0, torch.zeros(2), torch.zeros(2, 3, dtype=torch.float64)

    def counts(self, *lengths: Tensor) -> Tensor:
        """How many tokens of texts of these lengths are guessed, by the tower and by the decoder, (2,) on the host."""
        return torch.tensor([sum(int(each.count(part).sum()) for part in lengths) for each in self.maskings], dtype=torch.float64)

    def vectors(self, tower: Encoder, batch: TokenBatch) -> Tensor:
        """The vectors (N, D) of texts with masked tokens, in evaluation of whole texts; where a graph is made, with the losses attached."""
        order = torch.argsort(batch.lengths, descending=True, stable=True)
        batch = batch.select(order)
        guesses = self._guesses(batch, 0)
        states = _states(tower, tower.backbone, guesses.batch)
        lengths = batch.lengths.to(batch.tokens.device, non_blocking=True)
        pooled = tower.pooling.packed(states, guesses.batch.tokens, lengths, batch.position)
        vectors = tower.finished(pooled)
        if torch.is_grad_enabled():
            losses, counted = zip(self._loss(tower, states, guesses), self._loss_of_decoder(tower, pooled, batch), strict=True)
            vectors = _Attached.apply(vectors, torch.stack(losses), torch.stack(counted), self)
        return vectors[torch.argsort(order).to(vectors.device, non_blocking=True)]

    def _guesses(self, batch: TokenBatch, kind: int) -> Guesses:
        return self.maskings[kind](batch, self.key + kind) if self.training else Guesses(batch, batch.tokens[:0], batch.tokens[:0])

    def _loss_of_decoder(self, tower: Encoder, pooled: Tensor, batch: TokenBatch) -> tuple[Tensor, Tensor]:
        """The decoder reads the pooled vector in place of the first token, and the others heavily masked."""
        if self.decoder is None:
            none = pooled.new_zeros((), dtype=torch.promote_types(pooled.dtype, torch.float32))
            return none, none.double().expand(3)
        guesses = self._guesses(batch, 1)
        starts = (torch.cumsum(batch.lengths, 0) - batch.lengths).to(pooled.device, non_blocking=True)
        words = tower.backbone.get_input_embeddings()(guesses.batch.tokens)
        words = words.index_copy(0, starts, pooled.to(words.dtype))
        return self._loss(tower, _states(tower, self.decoder, guesses.batch, words), guesses)

    def _loss(self, tower: Encoder, states: Tensor, guesses: Guesses) -> tuple[Tensor, Tensor]:
        """The sum of the losses of the guesses; with it that sum, how many are right, and how many there are, (3,).

        Without any, the loss is that of a guess that counts nothing: no rank may leave the heads out.
        """
        count = len(guesses.places)
        places, targets = guesses[1:] if count else (guesses.batch.tokens[:1] * 0,) * 2
        dense = self.dense(states[places])
        # GELU, written out: on a CPU torch would keep a kernel for every number of guesses (dpr.models.fast.cpu_modules).
        guessed = self.norm(0.5 * dense * (1 + torch.erf(dense * 0.5**0.5)))
        loss, correct = _CrossEntropy.apply(guessed, tower.backbone.get_input_embeddings().weight, self.bias, targets)
        counted = torch.stack([loss.detach().double(), correct.double(), torch.full_like(correct, count).double()])
        return loss * min(count, 1), counted * min(count, 1)


def _states(tower: Encoder, backbone: Any, batch: TokenBatch, words: Tensor | None = None) -> Tensor:
    """Last hidden states (T, D) of a batch, the longest sequences first, by a backbone that runs as the tower's does."""
    if tower.is_packed:
        words = backbone.get_input_embeddings()(batch.tokens) if words is None else words
        return token_states(backbone, words, batch, batch.positions(), tower.fast)
    if words is None:
        return padded_states(backbone, batch)
    mask = batch.padded(pad_id(backbone.config))[1]
    padded = words.new_zeros(*mask.shape, words.shape[1])
    padded[mask] = words
    states: Tensor = backbone(inputs_embeds=padded, attention_mask=mask.to(torch.int64)).last_hidden_state[mask]
    return states


def _decoder_of(tower: Encoder) -> nn.Module:
    """One layer of the tower's kind over the tower's word table.

    Raises:
        ConfigError: there is no model of one layer of that kind, or it runs in another way than the tower.
    """
    config, words = copy.deepcopy(tower.config), tower.backbone.get_input_embeddings()
    config.num_hidden_layers = 1
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:1]
    kind, key = type(tower.backbone).__name__, "pretrain.decoder_masked"
    try:
        decoder: Any = backbone_from_config(config).to(words.weight)
        decoder.set_input_embeddings(words)
    except FAILURES as error:
        raise ConfigError(f"{key}: no decoder of one layer can be made of a {kind} ({first_line(error)}); set it to 0") from error
    able = accelerate(decoder, packed=tower.is_packed, attention=tower.fast.attention, reads_one_token=False)
    if able.first_position != tower.fast.first_position or words.weight.shape[1] != tower.config.hidden_size:
        raise ConfigError(f"{key}: a {kind} of one layer runs in another way than the tower, or its words have another width; set it to 0")
    return decoder
