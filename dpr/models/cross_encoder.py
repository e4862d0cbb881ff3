"""A cross-encoder: one sequence classifier reads question and passage together. The toolkit uses
cross-encoders but does not train them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpr.core.batch import plan_token_batches
from dpr.core.compute_settings import autocast
from dpr.core.errors import CheckpointError, first_line
from dpr.core.paths import user_path
from dpr.core.records import Passage, text_sha256
from dpr.data.tokenizer_files import load_tokenizer
from dpr.formats.model_folder import look
from dpr.models.backbones import load_weights, read_config
from dpr.models.properties import FAILURES, check_vocabulary, first_position
from dpr.storage.durable import describe_file

_LONGEST = 512
EXPECTED = (
    "a folder of a Hugging Face sequence classifier with 1 or 2 labels: config.json, model.safetensors and"
    " its tokenizer"
)


class CrossEncoder:
    """Cross-encoder that returns the probability that the passage of a pair is relevant: the sigmoid of the
    one logit, or the softmax of the second of two.

    A passage is its title and its text, joined by a space. Pairs longer than the model accepts are cut, the
    longer side first. ``fingerprint`` changes with the files of the folder and the precision.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        fingerprint: str,
        batch_tokens: int = 4096,
        precision: str = "fp32",
        max_length: int = _LONGEST,
    ) -> None:
        self._model = model.eval()
        self._tokenizer = tokenizer
        self.fingerprint = fingerprint
        self._batch_tokens = batch_tokens
        self._precision = precision
        positions = getattr(model.config, "max_position_embeddings", None) or max_length
        positions -= first_position(model.base_model) or 0
        self._max_length = min(max_length, positions, tokenizer.model_max_length)

    @torch.inference_mode()
    def log_odds(self, pairs: Sequence[tuple[str, Passage]]) -> list[float]:
        """Returns the log-odds of relevance of each pair: the one logit, or the second of two minus the
        first."""
        if not pairs:
            return []
        questions = [question for question, _ in pairs]
        passages = [
            f"{passage.title} {passage.text}" if passage.title else passage.text for _, passage in pairs
        ]
        encoded = self._tokenizer(
            questions, passages, truncation="longest_first", max_length=self._max_length
        )
        lengths = np.array([len(tokens) for tokens in encoded["input_ids"]])
        scores = np.empty(len(pairs))
        for rows in plan_token_batches(lengths, self._batch_tokens, len(pairs)):
            chosen = {name: [values[row] for row in rows.tolist()] for name, values in encoded.items()}
            batch = self._tokenizer.pad(chosen, return_tensors="pt").to(self._model.device)
            with autocast(self._model.device, self._precision):
                logits = self._model(**batch).logits
            logits = logits.double()
            relevance = logits[:, 0] if logits.shape[1] == 1 else logits[:, 1] - logits[:, 0]
            scores[rows] = relevance.cpu().numpy()
        if not np.isfinite(scores).all():
            raise CheckpointError(
                "the cross-encoder gives scores that are NaN or infinite", file=self._model.name_or_path
            )
        return scores.tolist()

    @classmethod
    def load(
        cls,
        folder: str | Path,
        device: str | torch.device | None = None,
        *,
        batch_tokens: int = 4096,
        precision: str = "fp32",
    ) -> CrossEncoder:
        """Loads a local folder. Code in it is never run, and pickled weights are not read.

        Raises:
            CheckpointError: the folder has no such model, not all of its weights, or no tokenizer.
        """
        from transformers import AutoModelForSequenceClassification

        path = user_path(folder)
        found = look(path)
        found.require_safetensors()
        model = load_weights(
            AutoModelForSequenceClassification, path, read_config(found), use_safetensors=True
        )
        tokenizer = load_tokenizer(found)
        check_vocabulary(tokenizer, model, path)
        files = [
            (file.name, describe_file(file)["sha256"]) for file in sorted(path.iterdir()) if file.is_file()
        ]
        digest = text_sha256(json.dumps([files, precision]))[:32]
        if (labels := model.config.num_labels) not in (1, 2):
            raise CheckpointError(f"the classifier has {labels} labels", file=folder, expected=EXPECTED)
        scorer = cls(
            model.to(device or "cpu"),
            tokenizer,
            fingerprint=digest,
            batch_tokens=batch_tokens,
            precision=precision,
        )
        try:
            scorer.log_odds([("a", Passage("b c")), ("a b c", Passage("b"))])
        except FAILURES as error:
            raise CheckpointError(
                f"it cannot score a pair ({first_line(error)})", file=folder, expected=EXPECTED
            ) from error
        return scorer
