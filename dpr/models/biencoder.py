"""The two towers: forward pass in training, and loading, encoding and saving from Python."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from dpr.core.batch import Temperature, TokenBatch, plan_token_batches
from dpr.core.distributed import full_tensor, largest_over_ranks, local_shard, placed_like
from dpr.core.errors import CheckpointError, ConfigError, DprError
from dpr.core.logs import Progress
from dpr.core.other_names import hint, refuse
from dpr.core.paths import user_path, with_home
from dpr.core.records import Passage
from dpr.data.tensorizer import Tensorizer
from dpr.data.text import checked_items
from dpr.formats import checkpoints
from dpr.formats.corpora import passage_of
from dpr.models.adapters import BaseModel, is_stored, load_base, update_digest
from dpr.models.backbones import (
    CONFIG,
    backbone_from_config,
    check_vocabulary,
    check_weights,
    deciding_config,
    distinct_weights,
    is_without_weights,
    load_backbone,
    local_model,
)
from dpr.models.encoder import Encoder, filler_tokens
from dpr.models.fast.packed import CPU_FORWARD_TOKENS
from dpr.models.fast.streams import in_streams
from dpr.models.folders.modules import described_model, prompts_of
from dpr.models.model_parts import present
from dpr.models.pooling import begin_with_idf
from dpr.models.settings import EncoderSettings, GivenTextSettings
from dpr.models.settings import TowerOptions as TowerOptions  # users import it from here
from dpr.models.tower_building import build_towers, table_beside
from dpr.models.trials import is_static
from dpr.storage.durable import durable_folder

BATCH_TOKENS = 8192
"""Default number of tokens in a forward pass without gradient."""

PassageLike = str | Passage | Mapping[str, Any]


class BiEncoderVectors(NamedTuple):
    """Vectors of ``questions`` (B, D) and ``contexts`` (C, D), and the ``temperature`` of their scores."""

    questions: Tensor
    contexts: Tensor
    temperature: Temperature


class BiEncoder(nn.Module):
    """A question tower and a context tower (the same module when shared), with the tokenizer they belong
    to. ``BiEncoder(name_or_folder, ...)`` is ``BiEncoder.load(name_or_folder, ...)``."""

    question_model: Encoder
    ctx_model: Encoder
    tensorizer: Tensorizer
    settings: EncoderSettings

    def __init__(
        self,
        question_model: Encoder | str | Path,
        ctx_model: Any = None,
        tensorizer: Any = None,
        settings: Any = None,
        options: TowerOptions | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__()
        if isinstance(question_model, str | Path):
            loaded = self.load(question_model, settings=settings, options=options, **arguments)
            self.__dict__.update(loaded.__dict__)
            return
        refuse(arguments, "BiEncoder(towers)")
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

    def train(self, mode: bool = True) -> BiEncoder:
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

    @property
    def sides_differ(self) -> bool:
        """True if a text has another vector as a question than as a passage, because of separate towers or
        other prompts. Length limits and apostrophes are not compared."""
        return (
            self.question_model is not self.ctx_model
            or self.tensorizer.text.query_prompt != self.tensorizer.text.passage_prompt
        )

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
    def similarity_fn_name(self) -> str:
        """Returns ``cosine`` if vectors have length 1, else ``dot``. In both cases the score is the product
        of two vectors."""
        return "cosine" if self.settings.normalize else "dot"

    def similarity(self, questions: Any, passages: Any) -> Tensor:
        """Returns scores (Q, P) of vectors (Q, D) and (P, D), arrays or tensors, by
        ``similarity_fn_name``."""
        return self._compared(questions) @ self._compared(passages).T

    def similarity_pairwise(self, questions: Any, passages: Any) -> Tensor:
        """Returns scores (N,) of vectors (N, D) and (N, D), pair by pair."""
        return (self._compared(questions) * self._compared(passages)).sum(-1)

    def _compared(self, vectors: Any) -> Tensor:
        try:
            tensor = torch.atleast_2d(torch.as_tensor(vectors))
        except (TypeError, ValueError, RuntimeError):
            raise TypeError(
                f"similarity() takes vectors, not {type(vectors).__name__}; encode_questions makes them of texts"
            ) from None
        return nn.functional.normalize(tensor, dim=-1) if self.settings.normalize else tensor

    @property
    def max_seq_length(self) -> int:
        """Returns the longest text in tokens, special tokens included. Setting it changes both sides.

        Raises:
            ConfigError: the backbone has fewer positions, or the model has the original's stray [SEP].
        """
        return self.settings.sequence_length

    @max_seq_length.setter
    def max_seq_length(self, length: int) -> None:
        if self.settings.dpr_trailing_sep:
            raise ConfigError("the stray [SEP] of this model stands at a fixed position; its length stays")
        for tower in self.towers:
            tower.check_length(length, "max_seq_length")
        self.settings = replace(self.settings, sequence_length=length, question_length=0)
        self.tensorizer.sequence_length = self.tensorizer.question_length = length

    @property
    def tokenizer(self) -> Any:
        """Returns the tokenizer of transformers that texts go through."""
        return self.tensorizer.tokenizer

    def get_sentence_embedding_dimension(self) -> int:
        """Returns ``dimension``, under the name of sentence-transformers."""
        return self.dimension

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError as error:
            raise AttributeError(f"{error}{hint(name)}") from None

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

    def keep_dimensions(self, dimensions: int) -> None:
        """Cuts vectors to their first ``dimensions`` numbers (Matryoshka) from now on; 0 leaves them as they
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

    def use_static_questions(self) -> None:
        """Replaces the question tower by a static embedding table.

        The row of a token starts as the vector that the present tower gives to that token alone. So tokens
        that occur in no training question have a row too.

        Raises:
            ConfigError: the tower of passages has no layers, or the weights are adapters.
        """
        if self.ctx_model.adapter is not None:
            raise ConfigError(
                "encoder.static_questions=true, but the model has adapters; merge them first (dpr export"
                " to=model)"
            )
        table = table_beside(self.ctx_model, self.settings, self.options)
        words = table.backbone.get_input_embeddings().weight
        sequences = self.tensorizer.question_tokens([[token] for token in range(len(words))])
        vectors = self.encode_batch(TokenBatch.from_lists(sequences), encoder_type="question")
        with torch.no_grad():
            words[:, : vectors.shape[1]] = vectors.to(words)
        self.question_model = table.to(self.device, vectors.dtype).train(self.training)
        self.settings = replace(self.settings, shared=False, static_questions=True)

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

    def encode_questions(
        self,
        texts: str | Sequence[str],
        *,
        prompt: str | None = None,
        prompt_name: str | None = None,
        **options: Any,
    ) -> Any:
        """Returns vectors of questions, (Q, D) float32 in the given order; (D,) for a single text. The
        model's ``query_prompt`` precedes them, or the one of its ``prompts`` that ``prompt`` or
        ``prompt_name`` names.

        Options, as of ``encode_passages``:
            batch_tokens: tokens of a forward pass at most; texts of similar length are encoded together.
            batch_size: texts of a forward pass at most; 0 is no limit.
            show_progress_bar: a bar on a terminal, lines in the log elsewhere.
            convert_to_tensor: a tensor on the model's device, in place of an array.
            convert_to_numpy: the default; False needs ``convert_to_tensor``.
            normalize_embeddings: scales vectors to length 1, whatever the model does.
            device: moves the model there first.

        Raises:
            TypeError: something else than texts is given.
        """
        questions = checked_items(texts, (str,), "encode_questions", "a text")
        sequences = self.tensorizer.question_tokens(questions, prompt=prompt or prompt_name)
        vectors = self._encoded("questions", sequences, "question", **options)
        return vectors[0] if isinstance(texts, str) else vectors

    def encode_passages(self, passages: PassageLike | Sequence[PassageLike], **options: Any) -> Any:
        """Returns vectors of passages or of texts without a title, (P, D) float32 in the given order; (D,)
        for a single one. The model's ``passage_prompt`` precedes them. Dictionaries, and the rows of a table,
        are read by their names (``text``, ``title``). The options are those of ``encode_questions``.

        Raises:
            TypeError: something else than texts and passages is given.
            ValueError: a dictionary has no text.
        """
        given = checked_items(passages, (str, Passage, Mapping), "encode_passages", "a text or a Passage")
        records = [passage_of(passage) for passage in given]
        vectors = self._encoded("passages", self.tensorizer.passage_tokens(records), "ctx", **options)
        return vectors[0] if isinstance(passages, str | Passage) else vectors

    encode_query = encode_questions
    encode_document = encode_passages

    def encode(self, texts: Any, *, prompt_name: str | None = None, **options: Any) -> Any:
        """Encodes texts as ``encode_passages`` does, under the name of sentence-transformers, if the sides do
        not differ. ``prompt_name`` chooses one: ``document``, ``query``, or the name of another prompt of
        questions.

        Raises:
            ConfigError: ``sides_differ``, and ``prompt_name`` chooses none.
        """
        if prompt_name not in (None, "document"):
            name = None if prompt_name == "query" else prompt_name
            return self.encode_questions(texts, prompt=name, **options)
        if prompt_name is None and self.sides_differ:
            raise ConfigError(
                "this model encodes questions and passages differently; call encode_questions or"
                " encode_passages"
            )
        return self.encode_passages(texts, **options)

    def _encoded(
        self,
        what: str,
        sequences: list[list[int]],
        encoder_type: str,
        *,
        batch_tokens: int = BATCH_TOKENS,
        batch_size: int = 0,
        show_progress_bar: bool = False,
        convert_to_tensor: bool = False,
        convert_to_numpy: bool = True,
        normalize_embeddings: bool = False,
        precision: str | None = "float32",
        device: str | torch.device | None = None,
        **others: Any,
    ) -> np.ndarray | Tensor:
        refuse(others | {"precision": None if precision == "float32" else precision}, "encode()")
        if device is not None:
            self.to(device)
        if not (convert_to_tensor or convert_to_numpy):
            raise ConfigError(
                "convert_to_numpy=False needs convert_to_tensor=True; vectors come as one array or one tensor"
            )
        progress = Progress(what, len(sequences), unit=what, quiet=not show_progress_bar)
        try:
            vectors = self.encode_batch(
                TokenBatch.from_lists(sequences),
                encoder_type=encoder_type,
                batch_tokens=batch_tokens,
                max_sequences=batch_size,
                on_batch=progress.advance,
            ).float()
        finally:
            progress.close()
        if normalize_embeddings:
            vectors = nn.functional.normalize(vectors, dim=-1)
        return vectors if convert_to_tensor else vectors.cpu().numpy()

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

    @classmethod
    def load(
        cls,
        path: str | Path,
        device: str | torch.device | None = None,
        *,
        options: TowerOptions | None = None,
        dropout: float | None = None,
        pretrained_model_cfg: str | None = None,
        special_tokens: Sequence[str] = (),
        trailing_sep: bool = True,
        settings: EncoderSettings | None = None,
        text: GivenTextSettings | None = None,
        prompts: Mapping[str, str] | None = None,
        **others: Any,
    ) -> BiEncoder:
        """Loads a checkpoint folder, the best checkpoint of a run folder, a folder of sentence-transformers,
        Hugging Face or peft, or a checkpoint file of the original DPR. The model is in evaluation mode. A
        name that is none of these here is looked up on the hub (``local_model``); nothing else needs the
        network.

        Args:
            options: how it runs, and a temperature in place of the checkpoint's.
            pretrained_model_cfg: model that a file of the original takes config and tokenizer from, or that
                adapters belong to, instead of the name in the file.
            special_tokens, trailing_sep: for files of the original, which state neither and need its stray
                [SEP].
            settings: lengths, and values that a third-party folder does not state. Values that it does state
                (pooling, prompt) take precedence.
            text: prompts, title template and apostrophe rule of a model that states none or, with
                ``allow_other_prompts``, in place of its own.
            prompts: the same by the names query and document, as in sentence-transformers.

        Raises:
            CheckpointError: there is no checkpoint, it is damaged, or its weights do not fit its config.
            ConfigError: ``text`` differs from the text settings that the model was trained with.
        """
        from dpr.models.folders.layouts import read_model  # readers of every library's folders

        refuse(others, "BiEncoder.load()")
        if settings is not None:
            settings.check_values("encoder.")
        options = options or TowerOptions()
        if prompts is not None:
            text = GivenTextSettings(
                allow_other_prompts=True, **prompts_of({"prompts": prompts}, Path(path, "prompts"))
            )
        folder = local_model(path)
        parts, source = read_model(
            folder,
            settings or EncoderSettings(),
            base=pretrained_model_cfg,
            special_tokens=special_tokens,
            trailing_sep=trailing_sep,
        )
        wanted = (settings or EncoderSettings()).over(parts.settings)
        own = replace(
            parts.settings, sequence_length=wanted.sequence_length, question_length=wanted.question_length
        )
        parts.tensorizer.sequence_length = own.sequence_length
        parts.tensorizer.question_length = own.question_length or own.sequence_length
        if text is not None:
            given = text.text_of(parts.tensorizer.text, stated=parts.stated, source=path)
            parts.tensorizer.present(given)
            own = replace(own, **vars(given))
        if settings is not None and settings.adapter != "none" and own.adapter == "none":
            if described_model(str(folder)) is None:
                advice = "dpr export to=sentence-transformers writes a folder that they can be added to"
                if (folder / CONFIG).is_file():
                    advice = f"it does not say how a text becomes a vector; encoder.pretrained_model_cfg={path} takes it"
                raise ConfigError(
                    f"encoder.adapter={settings.adapter}: no adapters can be added to {path}; {advice}"
                )
            # The encoder's weights stay as they are, and the checkpoint names them instead of holding them. They
            # are read again, by peft's names.
            parts.weights.clear()
            is_short = "/" not in str(path) and not Path(path).exists()  # one of the library's own on the hub
            model = cls.from_pretrained(
                f"sentence-transformers/{path}" if is_short else str(path),
                replace(
                    own,
                    adapter=settings.adapter,
                    lora_rank=settings.lora_rank,
                    lora_alpha=settings.lora_alpha,
                    lora_targets=settings.lora_targets,
                ),
                dropout=dropout,
                special_tokens=special_tokens,
                options=options,
            )
            return model.to(device or "cpu").eval()
        stored = parts.learned_temperature or parts.temperature
        if options.temperature is None:
            options = replace(options, temperature=parts.temperature if options.learn_temperature else stored)
        else:
            parts.weights.pop("log_temperature", None)
        make: Callable[..., nn.Module] = partial(backbone_from_config, parts.config)
        if parts.base is not None:
            make = partial(load_base, parts.base, source, pretrained_model_cfg)
        make = partial(make, dropout=dropout, attention_dropout=options.attention_dropout)
        try:
            towers = build_towers(make, own, options, parts.base or BaseModel(str(source), ""))
        except DprError:
            raise
        except Exception as error:  # model classes raise anything for an inconsistent config
            raise CheckpointError(
                f"its config makes no model ({type(error).__name__}: {str(error)[:200]})", file=source
            ) from error
        model = cls(*towers, parts.tensorizer, own, options)
        model.load_weights(parts.weights, source=source)
        model.stored_temperature = stored
        return model.to(device or "cpu").eval()

    @classmethod
    def from_sentence_transformers(cls, model: Any, **arguments: Any) -> BiEncoder:
        """Reads the towers of a ``SentenceTransformer`` like a folder that it saved, with the ``arguments``
        of ``load``. Raises CheckpointError if its vectors would differ here."""
        with TemporaryDirectory() as folder:
            model.save_pretrained(folder, create_model_card=False)
            return cls.load(folder, **arguments)

    @classmethod
    def from_pretrained(
        cls,
        name_or_folder: str,
        settings: EncoderSettings | None = None,
        *,
        pretrained: bool = True,
        dropout: float | None = None,
        do_lower_case: bool | None = None,
        special_tokens: Sequence[str] = (),
        options: TowerOptions | None = None,
        **unknown: Any,
    ) -> BiEncoder:
        """Makes two towers, or a shared one, from a Hugging Face encoder; ``pretrained=False`` gives random
        weights. The weights of ``idf`` pooling start from the frequencies in the encoder's folder.

        Without ``settings``, a model of sentence-transformers is opened as by ``load``. With them, its
        encoder and its Dense become the towers, one or two as in the model. Pooling, normalisation, prompts
        and lengths are the model's unless ``settings`` give others.
        """
        from dpr.models.folders.layouts import read_model

        refuse(unknown, "BiEncoder.from_pretrained()")
        name_or_folder = with_home(str(name_or_folder))
        options = options or TowerOptions()
        described = described_model(name_or_folder) if pretrained else None
        if described is not None and settings is None:
            return cls.load(described, options=options, dropout=dropout, special_tokens=special_tokens)
        settings = settings or EncoderSettings()
        named = (("settings", settings, EncoderSettings), ("options", options, TowerOptions))
        for name, given, kind in named:
            if not isinstance(given, kind):
                raise ConfigError(f"{name} is of type {type(given).__name__}; give dpr.{kind.__name__}")
        settings.check_values("encoder.")
        others: dict[str, Tensor] = {}
        if described is not None:
            if not (described / CONFIG).is_file():
                raise ConfigError(
                    f"encoder.pretrained_model_cfg={described} is a folder of sentence-transformers whose encoder"
                    f" lies deeper, or which has two; set model_file={described} in its place (BiEncoder.load)"
                )
            parts, _ = read_model(described, EncoderSettings())
            settings = settings.over(parts.settings)
            if settings.projection_dim == parts.settings.projection_dim:  # a Dense
                others = {name: tensor for name, tensor in parts.weights.items() if ".backbone." not in name}
            del parts
        has_table = settings.static_questions
        if has_table:  # one tower, from which the table is initialised
            settings = replace(settings, static_questions=False, shared=True)
        make = partial(
            load_backbone,
            name_or_folder,
            pretrained=pretrained,
            dropout=dropout,
            attention_dropout=options.attention_dropout,
        )
        towers = build_towers(make, settings, options, BaseModel(name_or_folder, ""))
        for tower in dict.fromkeys(towers):
            begin_with_idf(tower.pooling, Path(name_or_folder))
        tensorizer = Tensorizer.load(
            name_or_folder,
            sequence_length=settings.sequence_length,
            question_length=settings.question_length,
            do_lower_case=do_lower_case,
            special_tokens=special_tokens,
            append_eos=settings.append_eos,
        )
        if settings.pooling == "last":
            tensorizer.check_end_token()
        settings = present(tensorizer, settings)
        model = cls(*towers, tensorizer, settings, options)
        model.load_state_dict(others, strict=False)
        model.is_random = not is_static(towers[0].backbone) and (
            not pretrained or is_without_weights(Path(name_or_folder))
        )
        if has_table:
            model.use_static_questions()
        return model
