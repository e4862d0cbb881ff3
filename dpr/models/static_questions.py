"""A tower of questions without layers beside a transformer of passages (``encoder.static_questions``)."""

from __future__ import annotations

import torch

from dpr.core.batch import TokenBatch
from dpr.core.errors import ConfigError
from dpr.models.encoder import Encoder
from dpr.models.encoding import TextEncoding
from dpr.models.settings import EncoderSettings, TowerOptions
from dpr.models.static import StaticBackbone, StaticConfig
from dpr.models.trials import is_static


def table_beside(ctx: Encoder, settings: EncoderSettings, options: TowerOptions) -> Encoder:
    """A row for each token of ``ctx``, as wide as the vectors of that before they are cut, and the pooling
    ``idf``.

    Raises:
        ConfigError: ``ctx`` has no layers either.
    """
    if is_static(ctx.backbone):
        raise ConfigError(
            "encoder.static_questions=true, but the model of the passages is static itself; leave it out"
        )
    width = ctx.pooled_width if ctx.encode_proj is None else ctx.encode_proj.out_features
    backbone = StaticBackbone(StaticConfig(int(ctx.config.vocab_size), width, ctx.config.pad_token_id))
    return Encoder(
        backbone,
        pooling="idf",
        normalize=settings.normalize,
        packed=options.packed,
        dimensions=settings.dimensions,
    )


def table_of_questions(model: TextEncoding, settings: EncoderSettings, options: TowerOptions) -> Encoder:
    """Such a table for a model with another tower of questions: a token's row begins as the vector of that
    token alone, by this tower, so tokens that no question of the training data holds have their place too.

    Raises:
        ConfigError: the model of the passages has no layers, or the weights are adapters.
    """
    if model.ctx_model.adapter is not None:
        raise ConfigError(
            "encoder.static_questions=true, but the model has adapters; merge them first (dpr export"
            " to=model)"
        )
    table = table_beside(model.ctx_model, settings, options)
    words = table.backbone.get_input_embeddings().weight
    sequences = model.tensorizer.question_tokens([[token] for token in range(len(words))])
    vectors = model.encode_batch(TokenBatch.from_lists(sequences), encoder_type="question")
    with torch.no_grad():
        words[:, : vectors.shape[1]] = vectors.to(words)
    return table.to(model.device, vectors.dtype).train(model.training)
