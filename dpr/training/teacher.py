"""A model whose vectors another one learns (``loss.teacher``)."""

from __future__ import annotations

from dataclasses import asdict

from torch import Tensor

from dpr.core.batch import TokenBatch
from dpr.core.errors import ConfigError
from dpr.data.settings import TextSettings
from dpr.models.biencoder import BiEncoder


class ModelTeacher:
    """Encodes what the model in training encodes, token by token the same, without gradient, dropout and autocast.

    Raises:
        ConfigError: a vector of the model in training could never be the teacher's: another tokenizer, width, prompt or normalisation.
    """

    def __init__(self, folder: str, model: BiEncoder | None) -> None:
        if model is None:
            raise ConfigError("loss.teacher needs the model that learns from it; give make_loss one")
        self._teacher = teacher = BiEncoder.load(folder, model.device).to(next(model.parameters()).dtype)
        self.fingerprint, self.teaches_passages = teacher.fingerprint, not model.options.fix_ctx_encoder
        teacher.requires_grad_(False)
        ours, theirs = (_facts(each) for each in (model, teacher))
        if differing := [name for name in ours if ours[name] != theirs[name]]:
            name = differing[0]
            raise ConfigError(f"loss.teacher={folder}: its {name} is {theirs[name]!r}, the model's is {ours[name]!r}; {_MENDED_BY[name]}")
        for side in ("question", "sequence"):
            length, longest = (getattr(each.tensorizer, f"{side}_length") for each in (model, teacher))
            if length > longest:
                raise ConfigError(
                    f"loss.teacher={folder} takes {longest} tokens, but encoder.{side}_length is {length}; set it to {longest} or less"
                )

    def vectors(self, tokens: TokenBatch, side: str) -> Tensor:
        """Vectors (N, D) by the tower of ``side``, question or ctx."""
        return self._teacher.encode_batch(tokens, encoder_type=side)


_OF_TEXTS = "give both the same"
_MENDED_BY = {
    "tokenizer": "make the model with the teacher's (dpr new-encoder tokenizer=FOLDER)",
    "number of dimensions": "set encoder.projection_dim to the teacher's",
    "normalize": "set encoder.normalize to the teacher's",
    **dict.fromkeys(asdict(TextSettings()), _OF_TEXTS),
}


def _facts(model: BiEncoder) -> dict[str, object]:
    return {
        "tokenizer": model.tensorizer.vocabulary_fingerprint,
        "number of dimensions": model.dimension,
        "normalize": model.settings.normalize,
        **asdict(model.settings.part(TextSettings)),
    }
