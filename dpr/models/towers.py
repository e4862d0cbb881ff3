"""The two towers as training needs them: forward pass, vectors of tokens, weights, saving."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from dpr.core.batch import Temperature, TokenBatch, plan_token_batches
from dpr.core.distributed import full_tensor, largest_over_ranks, local_shard, placed_like
from dpr.core.paths import user_path
from dpr.data.tensorizer import Tensorizer
from dpr.formats import checkpoints
from dpr.models.adapters import BaseModel, is_stored, update_digest
from dpr.models.encoder import Encoder, filler_tokens
from dpr.models.fast.packed import CPU_FORWARD_TOKENS
from dpr.models.properties import check_vocabulary, check_weights, deciding_config, distinct_weights
from dpr.models.settings import EncoderSettings, TowerOptions
from dpr.storage.durable import durable_folder

BATCH_TOKENS = 8192
"""Default number of tokens in a forward pass without gradient."""


class BiEncoderVectors(NamedTuple):
    """Vectors of ``questions`` (B, D) and ``contexts`` (C, D), and the ``temperature`` of their scores."""

    questions: Tensor
    contexts: Tensor
    temperature: Temperature


class Towers(nn.Module):
    """A question tower and a context tower (the same module when shared), with the tokenizer they belong to.

    Training needs no more than this. ``BiEncoder`` adds texts, and reading a model's folder.
    """

    def __init__(
        self,
        question_model: Encoder,
        ctx_model: Encoder,
        tensorizer: Tensorizer,
        settings: EncoderSettings,
        options: TowerOptions | None = None,
    ) -> None:
        super().__init__()
        self.question_model = question_model
        self.ctx_model = ctx_model
        self.tensorizer = tensorizer
        self.settings = settings
        options = options or TowerOptions()
        temperature = options.temperature or (0.05 if settings.normalize else 1.0)
        self.has_temperature = options.temperature is not None
        """True if its temperature was stated or trained with; otherwise it is not stored."""
        self.options = replace(options, temperature=temperature)
        self.log_temperature = (
            nn.Parameter(torch.tensor(temperature).log()) if options.learn_temperature else None
        )
        self.stored_temperature: float | None = None
        """Temperature in the checkpoint that it was loaded from, if that stores one."""
        self.is_random = False
        """True if its layers have random weights, as in a new model."""
        if self.options.fix_ctx_encoder:
            self.ctx_model.requires_grad_(False)
        for tower in self.towers:
            check_vocabulary(
                tensorizer.tokenizer, tower.backbone, getattr(tower.config, "name_or_path", None) or None
            )
            tower.check_length(settings.sequence_length, "encoder.sequence_length")
            tower.check_length(settings.question_length, "encoder.question_length")
            is_table = settings.static_questions and tower is question_model
            if settings.dpr_trailing_sep and not is_table:
                tower.attend_to_last(tensorizer.sep_id, settings.sequence_length - 1)

    def forward(
        self,
        questions: TokenBatch,
        contexts: TokenBatch,
        encoder_type: str = "",
        *,
        on_contexts: Callable[[Tensor], None] = lambda vectors: None,
    ) -> BiEncoderVectors:
        """Encodes both sides. ``encoder_type`` question or ctx uses that tower for both (DPR's per-set
        option).

        ``on_contexts`` receives the context vectors as soon as they are computed; with two towers, this is
        before the questions are encoded. Work that it starts, such as sending them to other ranks, overlaps
        with that.

        Every tower takes part in every call, with weight zero if the batch does not need it: under
        data-parallel training, a rank that skips a tower leaves the others waiting.
        """
        question_tower = self.tower(encoder_type or "question")
        context_tower = self.tower(encoder_type or "ctx")
        if question_tower is context_tower and question_tower.is_packed and not self.options.fix_ctx_encoder:
            # Encoded together, packs are fuller, and the gradient of the word table, which is as large as the
            # table, is computed once.
            vectors = question_tower(TokenBatch.join([questions, contexts]))
            question_vectors, context_vectors = vectors.split([len(questions), len(contexts)])
            on_contexts(context_vectors)
        else:
            is_frozen = self.options.fix_ctx_encoder and context_tower is self.ctx_model
            with torch.no_grad() if is_frozen else nullcontext():
                context_vectors = context_tower(contexts)
            on_contexts(context_vectors)
            question_vectors = question_tower(questions)
        for tower in self.trained_towers():
            if tower is not question_tower and tower is not context_tower:
                idle = tower(questions.select(torch.zeros(1, dtype=torch.int64)))
                question_vectors = question_vectors + 0.0 * idle.sum()
        return BiEncoderVectors(question_vectors, context_vectors, self.temperature)

    def train(self, mode: bool = True) -> Self:
        """Sets training mode. A frozen context tower stays in evaluation mode, so that its dropout is off."""
        super().train(mode)
        if self.options.fix_ctx_encoder:
            self.ctx_model.eval()
        return self

    @property
    def dimension(self) -> int:
        return self.question_model.dimension

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def tower(self, encoder_type: str) -> Encoder:
        """Returns the tower named ``question`` or ``ctx``."""
        return self.question_model if encoder_type == "question" else self.ctx_model

    @property
    def towers(self) -> list[Encoder]:
        """Returns both towers; a shared one once."""
        return list(dict.fromkeys((self.question_model, self.ctx_model)))

    def trained_towers(self) -> list[Encoder]:
        """Returns the towers with trained weights; a shared one once."""
        return [tower for tower in self.towers if any(weight.requires_grad for weight in tower.parameters())]

    @property
    def temperature(self) -> Temperature:
        """Returns the temperature by which losses and validations divide scores."""
        if self.log_temperature is not None:
            return Temperature(local_shard(self.log_temperature).exp())
        return Temperature(self.options.temperature or 1.0)

    @property
    def fingerprint(self) -> str:
        """Returns a hash that changes with any weight of the towers, and with any setting of theirs or of
        their config that changes vectors."""
        configs = [deciding_config(tower.config) for tower in self.towers]
        parts = [repr(sorted(self.settings.as_dict().items())), self.tensorizer.fingerprint]
        parts += [json.dumps(configs, sort_keys=True), "" if self.base is None else self.base.fingerprint]
        digest = sha256("".join(parts).encode())
        update_digest(digest, {name: full_tensor(tensor) for name, tensor in self.weights().items()})
        return digest.hexdigest()[:32]

    def token_embeddings(self) -> list[nn.Parameter]:
        """Returns the token embedding table of each tower (one when shared)."""
        return [tower.backbone.get_input_embeddings().weight for tower in self.towers]

    def weights(self) -> dict[str, Tensor]:
        """Returns weights by name, DTensors for a sharded model. Weights that modules share (a tower, a
        table) appear once, under their first name."""
        return {
            name: tensor
            for name, tensor in distinct_weights(self).items()
            if self.base is None or is_stored(name)
        }

    @property
    def base(self) -> BaseModel | None:
        """Returns the frozen model that the towers' adapters belong to; None without adapters."""
        return None if self.question_model.adapter is None else self.question_model.adapter.base

    def load_weights(self, weights: dict[str, Tensor], *, source: Path) -> None:
        """Copies weights into the model. A model that does not learn its temperature takes a learned one as
        its fixed temperature.

        Raises:
            CheckpointError: names or shapes differ.
        """
        current = self.weights()
        if self.log_temperature is None and "log_temperature" in weights:
            self.options = replace(self.options, temperature=float(weights["log_temperature"].exp()))
            weights = {name: tensor for name, tensor in weights.items() if name != "log_temperature"}
        elif self.log_temperature is not None and "log_temperature" not in weights:
            weights = weights | {"log_temperature": current["log_temperature"]}
        check_weights(weights, current, source)
        placed = {name: placed_like(tensor, current[name]) for name, tensor in weights.items()}
        self.load_state_dict(placed, strict=False)  # a shared tensor is present under its first name only

    def keep_dimensions(self, dimensions: int) -> None:
        """Cuts all later vectors to their first ``dimensions`` dimensions (Matryoshka); 0 leaves them as they
        are.

        It is part of the model's settings, so its fingerprint differs for every width and a saved model keeps
        it.

        Raises:
            ConfigError: the vectors have fewer dimensions.
        """
        if dimensions and dimensions != self.dimension:
            for tower in self.towers:
                tower.keep(dimensions)
            self.settings = replace(self.settings, dimensions=dimensions)

    @torch.no_grad()
    def encode_batch(
        self,
        tokens: TokenBatch,
        *,
        encoder_type: str,
        batch_tokens: int = BATCH_TOKENS,
        max_sequences: int = 0,
        on_batch: Callable[[int, int], None] | None = None,
    ) -> Tensor:
        """Returns vectors (N, D) of token sequences in the given order, on the model's device, without
        dropout.

        Sequences of similar length are encoded together, at most ``batch_tokens`` tokens a forward and, if
        above 0, at most ``max_sequences``. ``on_batch`` is called after each forward with its numbers of
        sequences and tokens. All ranks of a sharded model call this method together, with or without texts.
        """
        tower = self.tower(encoder_type)
        was_training = self.training
        dtype = torch.promote_types(next(tower.parameters()).dtype, torch.float32)
        result = torch.empty(len(tokens), self.dimension, device=self.device, dtype=dtype)
        is_changed = was_training or tower.training
        if is_changed:  # visiting every module takes longer than a look-up in a table
            self.eval()
        try:
            # Also with one thread, so that the bits do not depend on the number of threads.
            is_for_streams = tower.runs_in_streams
            budget = min(batch_tokens, CPU_FORWARD_TOKENS) if is_for_streams else batch_tokens
            batches = plan_token_batches(tokens.lengths.cpu().numpy(), budget, max_sequences or len(tokens))
            # must be known to all ranks before the first forward
            most = largest_over_ranks(len(batches)) if tower.is_sharded else 0
            lock = Lock()

            def encode(rows: np.ndarray) -> None:
                index = torch.from_numpy(rows)
                part = tokens.select(index)
                if self.device.type == "cuda" and part.tokens.device.type == "cpu":
                    # the copies need not wait for the previous batch
                    index = index.pin_memory()
                    part = part.pin_memory()
                result[index.to(self.device, non_blocking=True)] = tower(part.to(self.device)).to(dtype)
                if on_batch is not None:
                    with lock:
                        on_batch(len(rows), len(part.tokens))

            if is_for_streams and len(batches) > 1 and torch.get_num_threads() > 1:
                in_streams(encode, batches)
            else:
                for rows in batches:
                    encode(rows)
            for _ in range(len(batches), most):
                tower(filler_tokens(self.device))
        finally:
            if is_changed:
                self.train(was_training)
        return result

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Writes a folder, complete or not at all, that ``BiEncoder.load`` and every command read
        (``model_file=FOLDER``).

        Raises:
            InputError: ``folder`` exists and ``overwrite`` is false.
        """
        with durable_folder(user_path(folder), overwrite=overwrite) as temporary:
            self.write_to(temporary)

    def write_to(self, folder: Path, weights: dict[str, Tensor] | None = None) -> None:
        """Writes everything needed to use the model into an existing folder (``dpr.formats.checkpoints``).
        The ``weights`` of a sharded model are given whole."""
        checkpoints.write_tensors(
            folder, checkpoints.MODEL_FILE, self.weights() if weights is None else weights
        )
        encoder_folder = folder / checkpoints.ENCODER_FOLDER
        encoder_folder.mkdir()
        self.ctx_model.config.save_pretrained(str(encoder_folder))
        self.tensorizer.save(encoder_folder)
        stated = self.settings.as_dict()
        # For a learned temperature this is the initial value; the learned one is among the weights.
        stated["temperature"] = self.options.temperature if self.has_temperature else None
        stated["format_version"] = checkpoints.FORMAT_VERSION
        if self.base is not None:
            stated["base"] = self.base._asdict()
        checkpoints.write_json_file(folder, checkpoints.SETTINGS_FILE, stated)


def in_streams(work: Callable[[np.ndarray], None], parts: Iterable[np.ndarray]) -> None:
    """Calls ``work`` without gradient on every part, on as many threads as torch computes with.

    Raises the error of a part; parts that have not begun are then skipped.
    """
    threads = torch.get_num_threads()
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None

    def work_here(part: np.ndarray) -> None:
        # torch keeps for each thread whether gradients are recorded, autocast, and its number of cores (below).
        with torch.no_grad(), torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
            work(part)

    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            for _ in pool.map(work_here, parts):
                pass
    finally:
        torch.set_num_threads(threads)  # for threads that are started later
