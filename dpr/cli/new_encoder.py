"""``dpr new-encoder``: an encoder folder with a new vocabulary, for training from scratch."""

from __future__ import annotations

from pathlib import Path

from dpr.cli.plain_arguments import PlainParser

EXAMPLE = """example:
  dpr new-encoder --corpus corpus.tsv --questions train.json --out my_encoder --vocab-size 8000 --layers 1 --hidden 256
  dpr train encoder.pretrained_model_cfg=my_encoder ...

  dpr new-encoder corpus=corpus.tsv out=my_static vocab_size=30000 layers=0 hidden=512
  dpr train encoder=static encoder.pretrained_model_cfg=my_static ...
"""


def main(argv: list[str]) -> int:
    """Learns a WordPiece vocabulary and writes it with the configuration of a BERT, or of a static encoder, as a Hugging Face folder."""
    parser = PlainParser(prog="dpr new-encoder", operands="corpus=FILE out=FOLDER", description=main.__doc__, epilog=EXAMPLE)
    parser.setting("corpus", type=Path, required=True, metavar="FILE", help="passages: DPR's TSV or BEIR's JSON lines")
    parser.setting("questions", type=Path, nargs="*", default=[], metavar="FILE", help="more text to learn from")
    parser.setting("out", type=Path, required=True, metavar="FOLDER", help="folder to write")
    parser.setting("vocab_size", type=int, default=30000, metavar="N", help="tokens, reserved ones included (default %(default)s)")
    parser.setting("layers", type=int, default=1, metavar="N", help="transformer layers; 0 makes a static encoder (default %(default)s)")
    parser.setting("hidden", type=int, default=256, metavar="N", help="width, also that of the vectors (default %(default)s)")
    parser.setting("heads", type=int, default=0, metavar="N", help="attention heads (default: one per 64 of the width)")
    parser.setting("max_positions", type=int, default=512, metavar="N", help="longest sequence in tokens (default %(default)s)")
    parser.setting("tokenizer", metavar="NAME", help="take the tokenizer of this model, a name or a folder, and learn no vocabulary")
    parser.setting("unused_slots", type=int, default=32, metavar="N", help="[unusedN] tokens (default %(default)s)")
    parser.setting("cased", action="store_true", help="keep upper case and accents apart")
    parser.setting("overwrite", action="store_true", help="replace what is at --out")
    options = parser.parse(argv)
    from dpr.core.logs import configure_logging
    from dpr.preparation.new_encoder import EncoderShape, new_encoder

    configure_logging()
    shape = EncoderShape(
        options.layers, options.hidden, options.heads, options.max_positions, options.vocab_size, not options.cased, options.unused_slots
    )
    size = new_encoder(
        options.out, options.corpus, options.questions, shape=shape, tokenizer=options.tokenizer, overwrite=options.overwrite
    )
    print(f"{options.out}: {options.layers} layer(s), {options.hidden} wide, {size} tokens; weights come with training")
    return 0
