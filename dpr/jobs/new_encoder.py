"""``dpr new-encoder``: an encoder folder with a new vocabulary, for training from scratch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from dpr.core.settings import Settings, require_set, setting


@dataclass
class NewEncoderSettings(Settings):
    """Learns a WordPiece vocabulary and writes it with the configuration of a BERT, or of a static encoder,
    as a Hugging Face folder."""

    EXAMPLES: ClassVar[str] = """\
dpr new-encoder corpus=corpus.tsv questions=train.json out=my_encoder vocab_size=8000 layers=1 hidden=256
dpr train encoder.pretrained_model_cfg=my_encoder ...

dpr new-encoder corpus=corpus.tsv out=my_static vocab_size=30000 layers=0 hidden=1024
dpr train encoder=static encoder.pretrained_model_cfg=my_static ...
"""
    corpus: str | None = setting(None, path="input")
    """Passages: DPR's TSV or BEIR's JSON lines."""
    questions: list[str] = setting(list, takes_words=True, path="input")
    """More text to learn from: files of questions or training data."""
    out: str | None = setting(None, path="output")
    """Folder to write."""
    vocab_size: int = setting(30_000, unit="tokens", least=1)
    """Size of the vocabulary, reserved tokens included."""
    layers: int = setting(1, least=0)
    """Transformer layers; 0 makes a static encoder."""
    hidden: int = setting(256, least=1)
    """Width, also that of the vectors."""
    max_positions: int = setting(512, unit="tokens", least=1)
    """Longest sequence."""
    tokenizer: str | None = setting(None, path="input")
    """Take the tokenizer of this model, a name or a folder, and learn no vocabulary."""
    cased: bool = False
    """Keep upper case and accents apart."""
    overwrite: bool = False
    """Replace what is at out."""

    def check_together(self, prefix: str) -> None:
        require_set(self, {"corpus": "corpus.tsv", "out": "my_encoder"})


def run(config: NewEncoderSettings) -> None:
    """Writes the folder."""
    from dpr.preparation.new_encoder import EncoderShape, new_encoder

    shape = EncoderShape(
        config.layers,
        config.hidden,
        max_positions=config.max_positions,
        vocab_size=config.vocab_size,
        lower_case=not config.cased,
    )
    questions = [Path(file) for file in config.questions]
    out, corpus = Path(str(config.out)), Path(str(config.corpus))
    size = new_encoder(
        out, corpus, questions, shape=shape, tokenizer=config.tokenizer, overwrite=config.overwrite
    )
    print(f"{out}: {config.layers} layer(s), {config.hidden} wide, {size} tokens; weights come with training")
