"""A bi-encoder as a model of mteb."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpr.core.batch import TokenBatch
from dpr.core.machine import require
from dpr.core.records import Passage
from dpr.models.biencoder import BiEncoder

_PURPOSE = "evaluation with mteb"


class MtebModel:
    """Encoder for all tasks of ``mteb.evaluate``.

    Titles and bodies of passages are encoded as the model was trained, not joined by a space, and with the
    model's own prompts.

    Args:
        name: ``organisation/model``, under which results are filed.
        instruction: text before questions that contains a task's own instruction, such as ``"Instruct:
            {instruction}\\nQuery: "``, for a model without prompts of its own. By default mteb's instructions
            are not used.
    """

    def __init__(self, model: BiEncoder, *, name: str = "dpr/model", instruction: str = "") -> None:
        require("mteb", extra="mteb", purpose=_PURPOSE)
        self.model = model
        self.name = name
        self.instruction = instruction

    @property
    def mteb_model_meta(self) -> Any:
        """Returns name, fingerprint and similarity, as mteb's metadata."""
        meta = require("mteb.models.model_meta", extra="mteb", purpose=_PURPOSE)
        metadata = {
            "name": self.name,
            "revision": self.model.fingerprint,
            "similarity_fn_name": meta.ScoringFunction.DOT_PRODUCT,
        }
        return meta.ModelMeta.create_empty(overwrites=metadata)

    def encode(
        self,
        inputs: Iterable[Mapping[str, Any]],
        *,
        task_metadata: Any,
        prompt_type: Any = None,
        **options: Any,
    ) -> np.ndarray:
        """Returns vectors (N, D) float32 of the batches, of questions if ``prompt_type`` says so, else of passages."""
        prompt = task_metadata.prompt if self.instruction else None
        stated = prompt.get("query") if isinstance(prompt, Mapping) else prompt
        prefix = self.instruction.format(instruction=stated) if stated else None
        parts = [np.zeros((0, self.model.dimension), dtype=np.float32)]
        for batch in inputs:
            if getattr(prompt_type, "value", prompt_type) == "query":
                tokens = self.model.tensorizer.question_tokens(list(batch["text"]), prefix=prefix)
                vectors = self.model.encode_batch(TokenBatch.from_lists(tokens), encoder_type="question")
                parts.append(vectors.float().cpu().numpy())
                continue
            # ``text`` is title and body joined, if these stand beside it.
            bodies = batch.get("body", batch["text"])
            titles = batch["title"] if "body" in batch and "title" in batch else [""] * len(bodies)
            pairs = zip(bodies, titles, strict=True)
            parts.append(
                self.model.encode_passages([Passage(body or "", title or "") for body, title in pairs])
            )
        return np.concatenate(parts)

    def similarity(self, first: Any, second: Any) -> Tensor:
        """Returns scores (N, M) of vectors (N, D) and (M, D)."""
        return torch.atleast_2d(torch.as_tensor(first)) @ torch.atleast_2d(torch.as_tensor(second)).T

    def similarity_pairwise(self, first: Any, second: Any) -> Tensor:
        """Returns scores (N,) of vectors (N, D) side by side."""
        return (torch.as_tensor(first) * torch.as_tensor(second)).sum(dim=-1)
