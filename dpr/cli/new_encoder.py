"""``dpr new-encoder``: an encoder folder with a vocabulary of its own, for training from scratch."""

from __future__ import annotations

import argparse
from pathlib import Path

EXAMPLE = """example:
  dpr new-encoder --corpus corpus.tsv --questions train.json --out my_encoder --vocab-size 8000 --layers 1 --hidden 256
  dpr train encoder.pretrained_model_cfg=my_encoder encoder.pretrained=false ...
"""


def main(argv: list[str]) -> int:
    """Learns a WordPiece vocabulary and writes it with a BERT configuration as a Hugging Face folder."""
    options = _parser().parse_args(argv)
    from dpr.core.logs import configure_logging
    from dpr.preparation.new_encoder import EncoderShape, new_encoder

    configure_logging()
    size = new_encoder(
        options.out,
        options.corpus,
        options.questions,
        shape=EncoderShape(options.layers, options.hidden, options.heads, options.max_positions),
        vocab_size=options.vocab_size,
        lower_case=not options.cased,
        num_unused=options.unused_slots,
        overwrite=options.overwrite,
    )
    print(f"{options.out}: {options.layers} layer(s), {options.hidden} wide, {size} tokens; weights come with training")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dpr new-encoder", description=main.__doc__, epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", type=Path, required=True, metavar="FILE", help="passages: DPR's TSV or BEIR's JSON lines")
    parser.add_argument("--questions", type=Path, nargs="*", default=[], metavar="FILE", help="more text to learn from")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="folder to write")
    parser.add_argument("--vocab-size", type=int, default=30000, metavar="N", help="tokens, reserved ones included (default %(default)s)")
    parser.add_argument("--layers", type=int, default=1, metavar="N", help="transformer layers (default %(default)s)")
    parser.add_argument("--hidden", type=int, default=256, metavar="N", help="width, also that of the vectors (default %(default)s)")
    parser.add_argument("--heads", type=int, default=0, metavar="N", help="attention heads (default: one per 64 of the width)")
    parser.add_argument("--max-positions", type=int, default=512, metavar="N", help="longest sequence in tokens (default %(default)s)")
    parser.add_argument("--unused-slots", type=int, default=32, metavar="N", help="[unusedN] tokens (default %(default)s)")
    parser.add_argument("--cased", action="store_true", help="keep upper case and accents apart")
    parser.add_argument("--overwrite", action="store_true", help="replace what is at --out")
    return parser
