"""``dpr mine``: hard negatives for training data."""

from __future__ import annotations

from pathlib import Path

from dpr.cli.plain_arguments import PlainParser

EXAMPLES = """examples:
  dpr mine train.jsonl out=train_bm25.jsonl
  dpr mine train.jsonl corpus=corpus.tsv out=train_bm25.jsonl per_question=10 from_rank=5 to_rank=100 pick=sample
"""


def main(argv: list[str]) -> int:
    """Adds hard negatives by BM25 to training data of any format that dpr prepare knows, and says what they are like.

    A run that was killed goes on when the same command is given again.
    """
    options = _parser().parse(argv)
    from dpr.core.logs import configure_logging
    from dpr.formats.training_sets import open_training_set
    from dpr.mining.audit import audit_lines
    from dpr.mining.job import mine
    from dpr.mining.negatives import MiningSettings

    configure_logging()
    settings = MiningSettings(**{name: getattr(options, name) for name in MiningSettings.__dataclass_fields__})
    settings.check()
    train = open_training_set(options.files, name="train", on_bad_row=options.on_bad_row, max_bad_rows=options.max_bad_rows)
    audit = mine(
        train,
        options.out,
        settings,
        corpus=options.corpus,
        k1=options.k1,
        b=options.b,
        processes=options.processes,
        overwrite=options.overwrite,
    )
    print("\n".join(audit_lines(audit)))
    print(f"{options.out}: {len(train):,} questions, {audit['counts']['negatives']:,} mined negatives")
    return 0


def _parser() -> PlainParser:
    parser = PlainParser(prog="dpr mine", operands="FILE [FILE ...]", description=main.__doc__, epilog=EXAMPLES)
    parser.add_argument("files", nargs="+", metavar="FILE", help="training files, folders or patterns; together one data set")
    parser.setting("out", type=Path, required=True, metavar="FILE", help="file to write; .gz is packed")
    parser.setting("corpus", type=Path, metavar="FILE", help="passages to mine from (default: those of the training data)")
    parser.setting("per_question", type=int, default=5, metavar="N", help="negatives per question, at most (default %(default)s)")
    parser.setting("from_rank", type=int, default=1, metavar="N", help="first rank to take from (default %(default)s)")
    parser.setting("to_rank", type=int, default=100, metavar="N", help="last rank to take from (default %(default)s)")
    parser.setting("pick", choices=("top", "sample"), default="top", help="the best that pass, or any of them (default top)")
    parser.setting("seed", type=int, default=0, metavar="N", help="decides what is drawn with pick=sample (default %(default)s)")
    parser.setting("keep_answers", action="store_true", help="keep passages that hold an answer string")
    parser.setting("near_duplicate", type=float, default=0.8, metavar="X", help="share of common words of repeats (default %(default)s)")
    parser.setting("max_relative_score", type=float, default=0.0, metavar="X", help="highest share of the positive's score (default: any)")
    parser.setting("keep_existing", action="store_true", help="keep the hard negatives that are there, before the mined ones")
    parser.setting("k1", type=float, default=0.9, metavar="X", help="BM25's k1 (default %(default)s)")
    parser.setting("b", type=float, default=0.4, metavar="X", help="BM25's b (default %(default)s)")
    parser.setting("processes", type=int, default=1, metavar="N", help="processes that search (default %(default)s)")
    parser.setting("on_bad_row", choices=("fail", "skip"), default="fail", help="skip leaves bad rows out and lists them (default fail)")
    parser.setting("max_bad_rows", type=int, default=100, metavar="N", help="how many may be skipped (default %(default)s)")
    parser.setting("overwrite", action="store_true", help="replace what is at out")
    return parser
