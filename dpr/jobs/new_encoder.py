"""``dpr new-encoder``: an encoder folder with a new vocabulary, for training from scratch."""

from __future__ import annotations

from pathlib import Path

from dpr.preparation.new_encoder import EncoderShape, new_encoder
from dpr.preparation.settings import NewEncoderSettings


def run(config: NewEncoderSettings) -> None:
    """Writes the folder."""
    shape = EncoderShape(
        config.layers,
        config.hidden,
        max_positions=config.max_positions,
        vocab_size=config.vocab_size,
        lower_case=not config.cased,
    )
    out = Path(str(config.out))
    size = new_encoder(
        out,
        str(config.corpus),
        config.questions,
        shape=shape,
        tokenizer=config.tokenizer,
        overwrite=config.overwrite,
    )
    print(f"{out}: {config.layers} layer(s), {config.hidden} wide, {size} tokens; weights come with training")
