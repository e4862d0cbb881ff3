"""Questions that a sequence-to-sequence model (T5, BART; doc2query) writes for the passages of a corpus.

Each word is one of the ten likeliest, drawn by a number that depends on the seed, the passage's row and the question's number alone. A file
beside the output keeps what is written, block by block, so a killed run loses one block at most. The blocks, and what is read together in
one, do not depend on interruptions, so neither do the bits. Another ``batch_tokens`` or machine rounds otherwise: of many questions one may
then differ.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpr.core.distributed import resolve_device
from dpr.core.errors import CheckpointError, first_line
from dpr.core.precision import dtype_of
from dpr.core.progress import Progress
from dpr.core.records import Passage
from dpr.core.seeding import generator_for
from dpr.data.order import PAIRS
from dpr.data.packing import plan_token_batches
from dpr.data.pseudo_pairs import PseudoPairs
from dpr.embedding.encode import usual_tokens
from dpr.formats.text_input import iter_lines
from dpr.models.cross_encoder import load_with_tokenizer
from dpr.models.trials import FAILURES
from dpr.preparation.settings import WriterSettings
from dpr.storage.steps import StepsInOrder

BLOCK_ROWS = 256
"""Passages whose questions are kept together."""
_FILE = "questions.jsonl"
_LONGEST = 512
_LIKELIEST = 10
_EXPECTED = "a folder of a Hugging Face sequence-to-sequence model: config.json, model.safetensors and its tokenizer"
_KEPT = ("decoder_start_token_id", "bos_token_id", "eos_token_id", "pad_token_id", "forced_bos_token_id", "forced_eos_token_id")


class QuestionWriter:
    """The model that ``settings`` name. Its folder decides what it is and which tokens begin and end a text, not how words are chosen.

    Raises:
        CheckpointError: the folder has no such model, not all of its weights, or no tokenizer.
    """

    def __init__(self, settings: WriterSettings) -> None:
        from transformers import AutoModelForSeq2SeqLM, GenerationConfig

        folder, device = str(settings.questions_by), resolve_device(settings.device)
        model, self._tokenizer, digest = load_with_tokenizer(AutoModelForSeq2SeqLM, folder, settings.precision, expected=_EXPECTED)
        self._model = model.to(device, dtype_of(settings.precision)).eval()
        positions = getattr(model.config, "max_position_embeddings", None) or _LONGEST
        self._max_length = min(_LONGEST, positions, self._tokenizer.model_max_length)
        self._settings, self._batch_tokens = settings, settings.batch_tokens or usual_tokens(device)
        self._max_tokens = min(settings.max_question_tokens, positions - 1)
        tokens = {name: getattr(model.generation_config, name, None) for name in _KEPT}
        model.generation_config = GenerationConfig(max_new_tokens=self._max_tokens, **tokens)
        own = ("passage_prefix", "max_question_tokens", "seed")
        self.facts = {"model": digest, **{name: getattr(settings, name) for name in own}}
        """What decides the questions."""
        try:
            self.write([(0, Passage("a")), (1, Passage("a b " * _LONGEST))], 1)
        except FAILURES as error:
            raise CheckpointError(f"it cannot write a question ({first_line(error)})", file=folder, expected=_EXPECTED) from error

    @torch.inference_mode()
    def write(self, passages: Sequence[tuple[int, Passage]], count: int) -> list[list[str]]:
        """So many questions of each passage, which come with their rows; a question may be empty."""
        if not passages:
            return []
        texts = [self._settings.passage_prefix + f"{passage.title} {passage.text}".lstrip() for _, passage in passages]
        inputs = self._tokenizer(texts, truncation=True, max_length=self._max_length, return_token_type_ids=False)
        questions: list[list[str]] = [[] for _ in passages]
        for places in plan_token_batches(np.array(list(map(len, inputs["input_ids"]))), self._batch_tokens):
            chosen = {name: [values[index] for index in places] for name, values in inputs.items()}
            batch = self._tokenizer.pad(chosen, return_tensors="pt").to(self._model.device)
            states = self._model.get_encoder()(**batch)
            for number in range(count):
                keys = ((PAIRS, self._settings.seed, number, 0, passages[index][0]) for index in places)
                draw = _Draw(np.stack([generator_for(*key).random(self._max_tokens) for key in keys]), self._model)
                tokens = self._model.generate(
                    generation_config=self._model.generation_config,
                    encoder_outputs=states,
                    attention_mask=batch["attention_mask"],
                    logits_processor=[draw],
                )
                for index, text in zip(places, self._tokenizer.batch_decode(tokens, skip_special_tokens=True), strict=True):
                    questions[index].append(" ".join(text.split()))
        return questions

    def write_all(
        self, held: PseudoPairs, num_held: int, train: PseudoPairs | None, rounds: int, *, made_of: Mapping[str, Any], work: Path
    ) -> Iterator[tuple[int, list[str]]]:
        """Rows with their questions: one of each of ``num_held`` passages held back, then ``rounds`` of each passage of ``train``.

        The folder ``work`` keeps what is written. Raises InputError if it holds questions made of something else.
        """
        asked: list[tuple[PseudoPairs, Sequence[int], int]] = [(held, [held.corpus_row(row) for row in range(num_held)], 1)]
        asked += [(train, range(train.num_passages), rounds)] if train else []
        blocks = [(pairs, rows[at : at + BLOCK_ROWS], count) for pairs, rows, count in asked for at in range(0, len(rows), BLOCK_ROWS)]
        steps = StepsInOrder(work, made_of)
        done, total = (sum(len(rows) for _, rows, _ in part) for part in (blocks[: steps.num_done], asked))
        progress = Progress("writing questions", total, done=done)
        for pairs, rows, count in blocks[steps.num_done :]:
            passages = [(number, row.passage) for number in rows if pairs.is_usable(row := pairs.row(number))]
            with steps.appended(_FILE) as out:
                for (number, _), questions in zip(passages, self.write(passages, count), strict=True):
                    out.write(json.dumps([number, questions]).encode() + b"\n")
            steps.commit()
            progress.advance(len(rows), 0)
        progress.close()
        return (json.loads(line) for _, line in iter_lines(work / _FILE))


class _Draw:
    """Leaves each text one of the likeliest next tokens, by its next number, 0 to 1, in ``numbers`` (texts, tokens)."""

    def __init__(self, numbers: np.ndarray, model: Any) -> None:
        self._numbers, self._file = iter(torch.from_numpy(numbers).to(model.device).T), model.name_or_path

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        best, tokens = scores.double().topk(min(_LIKELIEST, scores.shape[1]))
        if not best[:, 0].isfinite().all():
            raise CheckpointError("the model gives scores that are NaN or infinite", file=self._file)
        shares = best.softmax(1).cumsum(1)
        drawn = (shares <= next(self._numbers)[:, None]).sum(1, keepdim=True).clamp(max=shares.shape[1] - 1)
        return torch.full_like(scores, -torch.inf).scatter(1, tokens.gather(1, drawn), 0.0)
