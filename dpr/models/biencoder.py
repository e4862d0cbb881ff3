"""The bi-encoder of the public API: towers that encode texts, and are read from a model's folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from dpr.core.batch import TokenBatch
from dpr.core.compute_settings import PRECISIONS
from dpr.core.errors import CheckpointError, ConfigError
from dpr.core.logs import ProgressBar
from dpr.core.other_names import hint, refuse
from dpr.core.paths import with_home
from dpr.core.records import Passage, Question
from dpr.data.tensorizer import Tensorizer
from dpr.data.text import checked_items
from dpr.formats.model_folder import CONFIG, folder_or_name
from dpr.formats.passage_records import passage_of
from dpr.formats.record_fields import QUESTIONS, require_name, string_of
from dpr.models.adapters import BaseModel
from dpr.models.backbones import is_without_weights, load_backbone
from dpr.models.folders.layouts import read_model
from dpr.models.folders.model_parts import Given, with_text_settings
from dpr.models.folders.sentence_transformers_modules import prompts_of, sentence_transformers_folder
from dpr.models.pooling import begin_with_idf
from dpr.models.properties import is_static
from dpr.models.sentence_transformers_names import SentenceTransformersNames
from dpr.models.settings import EncoderSettings, GivenTextSettings
from dpr.models.settings import TowerOptions as TowerOptions  # users import it from here
from dpr.models.several_devices import EncodingOptions, encode_on_devices
from dpr.models.sources import local_model
from dpr.models.tower_building import build_towers, table_beside, towers_of
from dpr.models.towers import BATCH_TOKENS

QuestionLike = str | Question | Mapping[str, Any]
PassageLike = str | Passage | Mapping[str, Any]


class BiEncoder(SentenceTransformersNames):
    """A question tower and a context tower (the same module when shared), with the tokenizer they belong
    to. ``BiEncoder(name_or_folder, ...)`` is ``BiEncoder.load(name_or_folder, ...)``."""

    def __new__(cls, *given: Any, **options: Any) -> Self:
        if given and isinstance(given[0], str | Path):
            return cls.load(*given, **options)
        return super().__new__(cls)

    def __init__(
        self,
        question_model: Any = None,
        ctx_model: Any = None,
        tensorizer: Any = None,
        settings: Any = None,
        options: TowerOptions | None = None,
        **others: Any,
    ) -> None:
        if isinstance(question_model, str | Path):
            return  # __new__ has loaded it
        refuse(others, "BiEncoder(towers)")
        if settings is None:
            raise TypeError(
                "BiEncoder() takes the name or the folder of a model, not"
                f" {type(question_model).__name__}{hint(type(question_model).__name__)}"
            )
        super().__init__(question_model, ctx_model, tensorizer, settings, options)

    @property
    def sides_differ(self) -> bool:
        """True if a text has different vectors as a question and as a passage, because of separate towers or
        prompts. Length limits and apostrophes are not compared."""
        return (
            self.question_model is not self.ctx_model
            or self.tensorizer.text.query_prompt != self.tensorizer.text.passage_prompt
        )

    def encode_questions(
        self,
        texts: QuestionLike | Sequence[QuestionLike],
        *,
        prompt: str | None = None,
        prompt_name: str | None = None,
        **options: Any,
    ) -> Any:
        """Returns vectors of questions, (Q, D) float32 in the given order; (D,) for a single one. Dictionaries,
        and the rows of a table, are read by their names (``question``, ``query``, ``text``).

        The model's ``query_prompt`` precedes the questions. ``prompt`` is another text before them, or the
        name of one of the model's prompts; ``prompt_name`` is always a name.

        Keyword Args:
            batch_tokens: maximum number of tokens of a forward pass; texts of similar length are encoded
                together.
            batch_size: maximum number of texts of a forward pass; 0 = no limit.
            show_progress_bar: shows a bar on a terminal and in a notebook, log lines elsewhere.
            convert_to_tensor: returns a tensor on the model's device instead of an array.
            convert_to_numpy: the default; False returns a list of tensors.
            normalize_embeddings: scales vectors to length 1, whatever the model does.
            truncate_dim: returns only the first dimensions. Vectors that the model scales to length 1 are
                scaled after they are cut, as by ``keep_dimensions``.
            precision: arithmetic of the forward passes: fp32, bf16 or fp16; absent = that of the surrounding
                ``torch.autocast``, if any.
            device: device to which the model is moved first.
            devices: starts a process for each of these devices (``["cuda:0", "cuda:1"]``, ``["cpu", "cpu"]``),
                which end with the call. ``device`` takes such a list, too.

        Raises:
            TypeError: something other than questions is given.
            ValueError: a dictionary has no question.
            ConfigError: there is no prompt of that name.
        """
        kinds = (str, Question, Mapping)
        given = checked_items(texts, kinds, "encode_questions", "a text or a dictionary with 'question'")
        tensorizer = self._prompted("query_prompt", prompt, prompt_name)
        sequences = tensorizer.question_tokens([_question_text(each) for each in given])
        vectors = self._encoded("questions", sequences, "question", **options)
        return vectors[0] if isinstance(texts, kinds) else vectors

    def encode_passages(
        self,
        passages: PassageLike | Sequence[PassageLike],
        *,
        prompt: str | None = None,
        prompt_name: str | None = None,
        **options: Any,
    ) -> Any:
        """Returns vectors of passages, or of texts without a title, (P, D) float32 in the given order; (D,)
        for a single one. Dictionaries, and the rows of a table, are read by their names (``text``,
        ``title``). The model's ``passage_prompt`` precedes them; ``prompt``, ``prompt_name`` and all options
        are those of ``encode_questions``.

        Raises:
            TypeError: something other than texts and passages is given.
            ValueError: a dictionary has no text.
            ConfigError: there is no prompt of that name.
        """
        kinds = (str, Passage, Mapping)
        expected = "a text, a Passage or a dictionary with 'text' and 'title'"
        given = checked_items(passages, kinds, "encode_passages", expected)
        tensorizer = self._prompted("passage_prompt", prompt, prompt_name)
        sequences = tensorizer.passage_tokens([passage_of(each) for each in given])
        vectors = self._encoded("passages", sequences, "ctx", **options)
        return vectors[0] if isinstance(passages, kinds) else vectors

    def encode(
        self, texts: Any, *, prompt: str | None = None, prompt_name: str | None = None, **options: Any
    ) -> Any:
        """Encodes texts as ``encode_passages`` does, under the name of sentence-transformers, if questions
        and passages are encoded alike. ``prompt_name`` chooses one: ``document``, ``query``, or the name of
        another prompt of questions. A ``prompt`` replaces that of the model.

        Raises:
            ConfigError: the model has two towers or two prompts, and neither is chosen.
        """
        if prompt in self._prompts():
            prompt_name = prompt
            prompt = None
        if prompt is None and prompt_name not in (None, "document"):
            return self.encode_questions(texts, prompt_name=prompt_name, **options)
        is_open = self.question_model is not self.ctx_model if prompt is not None else self.sides_differ
        if prompt_name is None and is_open:
            raise ConfigError(
                "this model encodes questions and passages differently; call encode_questions or"
                " encode_passages"
            )
        return self.encode_passages(texts, prompt=prompt, **options)

    def _prompts(self) -> dict[str, str]:
        """Returns the model's prompts by their names in sentence-transformers."""
        text = self.tensorizer.text
        return {"query": text.query_prompt, "document": text.passage_prompt} | text.prompts

    def _prompted(self, key: str, prompt: str | None, name: str | None) -> Tensorizer:
        """Returns the tokenizer, with the text or the named prompt that is asked for as its prompt ``key``.

        A single word that is no name is refused, because it is probably a misspelt name: as a text, it would run into the
        text behind it.
        """
        if prompt is None or (prompt.isascii() and prompt.isidentifier()):
            known = self._prompts()
            name = prompt or name
            if name is None:
                return self.tensorizer
            if name not in known:
                as_text = f"; a text ends with a space or a colon: prompt='{prompt}: '" if prompt else ""
                raise ConfigError(f"the model has no prompt named {name}; it has {', '.join(known)}{as_text}")
            prompt = known[name]
        tensorizer = copy(self.tensorizer)
        stated: Any = {key: prompt}
        tensorizer.set_text_settings(replace(tensorizer.text, **stated))
        return tensorizer

    def _encoded(
        self,
        what: str,
        sequences: list[list[int]],
        encoder_type: str,
        *,
        batch_tokens: int = BATCH_TOKENS,
        batch_size: int = 0,
        show_progress_bar: bool | None = False,
        convert_to_tensor: bool = False,
        convert_to_numpy: bool = True,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        precision: str | torch.dtype | None = None,
        output_value: str | None = "sentence_embedding",
        device: Any = None,
        devices: Any = None,
        **others: Any,
    ) -> np.ndarray | Tensor | list[Tensor]:
        if output_value != "sentence_embedding":
            others["output_value"] = output_value
        by_torch = {name: short for short, name in PRECISIONS.items()}
        name = str(precision or "").removeprefix("torch.")
        arithmetic = by_torch.get(name, name)
        if arithmetic not in ("", *PRECISIONS):
            others["precision"] = precision
        refuse(others, "encode()")
        if truncate_dim is not None and not 0 < truncate_dim <= self.dimension:
            raise ConfigError(
                f"truncate_dim={truncate_dim}, but the model's vectors have {self.dimension} dimensions"
            )
        if isinstance(device, str | torch.device):
            self.to(device)
        elif device is not None:
            devices = device
        if isinstance(devices, str):
            devices = [devices]
        options = EncodingOptions(encoder_type, batch_tokens, batch_size, arithmetic)
        tokens = TokenBatch.from_lists(sequences)
        progress = ProgressBar(what, len(sequences), unit=what, quiet=not show_progress_bar)
        try:
            if devices:
                vectors = encode_on_devices(self, BiEncoder.load, tokens, devices, options, progress.advance)
            else:
                vectors = options.vectors(self, tokens, progress.advance)
        finally:
            progress.close()
        if truncate_dim is not None:
            vectors = vectors[:, :truncate_dim]
        if normalize_embeddings or (truncate_dim is not None and self.settings.normalize):
            vectors = nn.functional.normalize(vectors, dim=-1)
        if convert_to_tensor:
            return vectors.to(self.device)
        return vectors.cpu().numpy() if convert_to_numpy else list(vectors)

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
        truncate_dim: int | None = None,
        **others: Any,
    ) -> Self:
        """Loads a checkpoint folder, the best checkpoint of a run folder, a folder of sentence-transformers,
        Hugging Face or peft, or a checkpoint file of the original DPR. The model is in evaluation mode. Any
        other name is looked up on the hub (``local_model``); nothing else needs the network.

        Args:
            options: how it runs, and a temperature that replaces the checkpoint's.
            pretrained_model_cfg: model that a file of the original takes config and tokenizer from, or that
                adapters belong to, instead of the name in the file.
            special_tokens, trailing_sep: for files of the original, which state neither and need its stray
                [SEP].
            settings: lengths, and values that a third-party folder does not state. Values that it does state
                (pooling, prompt) take precedence.
            text: prompts, title template and apostrophe rule of a model that states none or, with
                ``allow_other_prompts``, in place of its own.
            prompts: the same by the names query and document, as in sentence-transformers.
            truncate_dim: dimensions that vectors are cut to (``keep_dimensions``).

        Raises:
            CheckpointError: there is no checkpoint, it is damaged, or its weights do not fit its config.
            ConfigError: ``text`` differs from the text settings that the model was trained with.
        """
        refuse(others, "BiEncoder.load()")
        if settings is not None:
            settings.check_values("encoder.")
        options = options or TowerOptions()
        if prompts is not None:
            text = GivenTextSettings(allow_other_prompts=True, **_given_prompts(prompts))
        folder = local_model(path)
        given = Given(settings or EncoderSettings(), pretrained_model_cfg, dropout, options.attention_dropout)
        parts, source = read_model(folder, given, special_tokens=special_tokens, trailing_sep=trailing_sep)
        # a model keeps its settings; only its texts may be cut elsewhere
        lengths = given.settings.over(parts.settings)
        own = replace(
            parts.settings, sequence_length=lengths.sequence_length, question_length=lengths.question_length
        )
        parts.tensorizer.sequence_length = own.sequence_length
        parts.tensorizer.question_length = own.question_length or own.sequence_length
        if text is not None:
            agreed = text.text_of(parts.tensorizer.text, stated=parts.stated, source=path)
            parts.tensorizer.set_text_settings(agreed)
            own = replace(own, **vars(agreed))
        if settings is not None and settings.adapter != "none" and own.adapter == "none":
            parts.weights.clear()  # they are read again, by peft's names
            own = replace(
                own,
                adapter=settings.adapter,
                lora_rank=settings.lora_rank,
                lora_alpha=settings.lora_alpha,
                lora_targets=settings.lora_targets,
            )
            model = cls._with_adapters(
                str(path), folder, own, dropout=dropout, special_tokens=special_tokens, options=options
            )
            return model.to(device or "cpu").eval()
        stored = parts.learned_temperature or parts.temperature
        if options.temperature is None:
            options = replace(options, temperature=parts.temperature if options.learn_temperature else stored)
        else:
            parts.weights.pop("log_temperature", None)
        parts = parts._replace(settings=own)
        towers = towers_of(parts, options, source=source, base=pretrained_model_cfg, dropout=dropout)
        model = cls(*towers, parts.tensorizer, own, options)
        model.load_weights(parts.weights, source=source)
        model.stored_temperature = stored
        model.keep_dimensions(truncate_dim or 0)
        return model.to(device or "cpu").eval()

    @classmethod
    def _with_adapters(cls, name: str, folder: Path, settings: EncoderSettings, **options: Any) -> Self:
        """Returns the model in a folder with new adapters beside its weights, which stay as they are. The
        checkpoint names them instead of holding them."""
        if sentence_transformers_folder(str(folder)) is None:
            advice = "dpr export to=sentence-transformers writes a folder that they can be added to"
            if (folder / CONFIG).is_file():
                advice = f"it does not say how a text becomes a vector; encoder.pretrained_model_cfg={name} takes it"
            raise ConfigError(
                f"encoder.adapter={settings.adapter}: no adapters can be added to {name}; {advice}"
            )
        is_short = "/" not in name and not Path(name).exists()  # one of the library's own on the hub
        return cls.from_pretrained(f"sentence-transformers/{name}" if is_short else name, settings, **options)

    @classmethod
    def from_sentence_transformers(cls, model: Any, **arguments: Any) -> Self:
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
        device: str | torch.device | None = None,
        prompts: Mapping[str, str] | None = None,
        truncate_dim: int | None = None,
        **unknown: Any,
    ) -> Self:
        """Makes two towers, or a shared one, from a Hugging Face encoder; ``pretrained=False`` gives random
        weights. The weights of ``idf`` pooling start from the frequencies in the encoder's folder.

        Without ``settings``, a model of sentence-transformers is opened as by ``load``. With them, its
        encoder and its Dense become the towers, one or two as in the model. Pooling, normalisation, prompts
        and lengths are the model's unless ``settings`` give others.
        """
        refuse(unknown, "BiEncoder.from_pretrained()")
        name_or_folder = with_home(str(name_or_folder))
        options = options or TowerOptions()
        described = sentence_transformers_folder(name_or_folder) if pretrained else None
        if described is not None and settings is None:
            return cls.load(
                described,
                device,
                options=options,
                dropout=dropout,
                special_tokens=special_tokens,
                prompts=prompts,
                truncate_dim=truncate_dim,
            )
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
                    f"encoder.pretrained_model_cfg={described} is a folder of sentence-transformers whose"
                    f" encoder is in a subfolder, or which has two encoders; set model_file={described} in"
                    " its place (BiEncoder.load)"
                )
            parts, _ = read_model(described, Given())
            settings = settings.over(parts.settings)
            if settings.projection_dim == parts.settings.projection_dim:  # a Dense
                others = {name: tensor for name, tensor in parts.weights.items() if ".backbone." not in name}
            del parts
        has_table = settings.static_questions
        if has_table:  # one tower, from which the table is initialised
            settings = replace(settings, static_questions=False, shared=True)
        source = folder_or_name(name_or_folder)
        make = partial(
            load_backbone,
            source,
            pretrained=pretrained,
            dropout=dropout,
            attention_dropout=options.attention_dropout,
        )
        towers = build_towers(make, settings, options, BaseModel(name_or_folder, ""))
        for tower in dict.fromkeys(towers):
            begin_with_idf(tower.pooling, Path(name_or_folder))
        tensorizer = Tensorizer.load(
            source,
            sequence_length=settings.sequence_length,
            question_length=settings.question_length,
            do_lower_case=do_lower_case,
            special_tokens=special_tokens,
            append_eos=settings.append_eos,
        )
        if settings.pooling == "last":
            tensorizer.check_end_token()
        if prompts is not None:
            settings = replace(settings, **_given_prompts(prompts))
        settings = with_text_settings(tensorizer, settings)
        model = cls(*towers, tensorizer, settings, options)
        model.load_state_dict(others, strict=False)
        model.is_random = not is_static(towers[0].backbone) and (not pretrained or is_without_weights(source))
        if has_table:
            model.use_static_questions()
        model.keep_dimensions(truncate_dim or 0)
        return model.to(device or model.device)

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


def _question_text(question: QuestionLike) -> str:
    if isinstance(question, str):
        return question
    if isinstance(question, Question):
        return question.text
    name = require_name(question, (*QUESTIONS, "text"), "question")
    return string_of(question[name], name)


def _given_prompts(prompts: Mapping[str, str]) -> dict[str, Any]:
    try:
        return prompts_of({"prompts": prompts}, Path("prompts"))
    except CheckpointError as error:
        raise ConfigError(f"BiEncoder: {error.found}; give {error.expected}") from None
