"""A cross-encoder: question and passage read together by one sequence classifier. Only used, never trained, here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpr.core.errors import CheckpointError, InputError
from dpr.core.precision import autocast
from dpr.core.records import Passage
from dpr.data.packing import plan_token_batches
from dpr.data.tensorizer import load_tokenizer
from dpr.formats.durable import describe_file
from dpr.models.pretrained import load_weights, read_config
from dpr.models.trials import first_position

_LONGEST = 512
EXPECTED = "a folder of a Hugging Face sequence classifier with 1 or 2 labels: config.json, model.safetensors and its tokenizer"


class CrossEncoder:
    """Scores pairs by a classifier's probability that the passage is relevant: the logistic function of its one logit, or the share of the
    second of its two.

    A passage is its title and its text, joined by a space. Pairs longer than the model takes are cut, the longer side first.
    """

    def __init__(
        self, model: Any, tokenizer: Any, *, fingerprint: str, batch_tokens: int = 4096, precision: str = "fp32", max_length: int = _LONGEST
    ) -> None:
        self._model, self._tokenizer = model.eval(), tokenizer
        self._fingerprint = fingerprint
        self._batch_tokens, self._precision = batch_tokens, precision
        positions = getattr(model.config, "max_position_embeddings", None) or max_length
        positions -= first_position(model.base_model) or 0
        self._max_length = min(max_length, positions, tokenizer.model_max_length)

    @property
    def fingerprint(self) -> str:
        """Changes with the files of the folder and the precision."""
        return self._fingerprint

    @torch.inference_mode()
    def score(self, pairs: Sequence[tuple[str, Passage]]) -> list[float]:
        """The probability, 0 to 1, that the passage of each pair is relevant to the question."""
        if not pairs:
            return []
        questions = [question for question, _ in pairs]
        passages = [f"{passage.title} {passage.text}" if passage.title else passage.text for _, passage in pairs]
        encoded = self._tokenizer(questions, passages, truncation="longest_first", max_length=self._max_length)
        lengths = np.array([len(tokens) for tokens in encoded["input_ids"]])
        scores = np.empty(len(pairs))
        for rows in plan_token_batches(lengths, self._batch_tokens, len(pairs)):
            chosen = {name: [values[row] for row in rows.tolist()] for name, values in encoded.items()}
            batch = self._tokenizer.pad(chosen, return_tensors="pt").to(self._model.device)
            with autocast(self._model.device, self._precision):
                logits = self._model(**batch).logits
            scores[rows] = _probabilities(logits).cpu().numpy()
        if not np.isfinite(scores).all():
            raise CheckpointError("the cross-encoder gives scores that are not numbers", file=self._model.name_or_path)
        return [float(score) for score in scores]

    @classmethod
    def load(
        cls, folder: str | Path, device: str | torch.device | None = None, *, batch_tokens: int = 4096, precision: str = "fp32"
    ) -> CrossEncoder:
        """Opens a folder on this machine. Code in it is never run, and pickled weights are not read.

        Raises:
            CheckpointError: it holds no such model, not all of its weights, or no tokenizer.
        """
        from transformers import AutoModelForSequenceClassification

        path = Path(folder).expanduser()
        try:
            model = load_weights(AutoModelForSequenceClassification, path, _config(path), use_safetensors=True)
            tokenizer = load_tokenizer(path)
        except InputError as error:
            raise CheckpointError(error.found, file=error.file, expected=error.expected or EXPECTED) from error
        files = [(file.name, describe_file(file)["sha256"]) for file in sorted(path.iterdir()) if file.is_file()]
        digest = hashlib.sha256(json.dumps([files, precision]).encode()).hexdigest()[:32]
        return cls(model.to(device or "cpu"), tokenizer, fingerprint=digest, batch_tokens=batch_tokens, precision=precision)


def _probabilities(logits: torch.Tensor) -> torch.Tensor:
    logits = logits.double()
    return torch.sigmoid(logits[:, 0] if logits.shape[1] == 1 else logits[:, 1] - logits[:, 0])


def _config(path: Path) -> Any:
    if not (path / "config.json").is_file():
        raise CheckpointError("is not a cross-encoder" if path.exists() else "there is no such folder", file=path, expected=EXPECTED)
    if not any(path.glob("*.safetensors")):
        found = "has no model.safetensors" + ("; its pytorch_model.bin is a pickle" if any(path.glob("*.bin")) else "")
        raise CheckpointError(found, file=path, hint="save the model again with save_pretrained of a recent transformers")
    config = read_config(path)
    if config.num_labels not in (1, 2):
        found = f"the classifier has {config.num_labels} labels"
        raise CheckpointError(found, file=path / "config.json", expected="1 label, or 2 of which the second means relevant")
    return config
