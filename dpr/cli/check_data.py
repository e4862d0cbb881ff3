"""``dpr check-data``: are these training data good to train on?"""

from __future__ import annotations

from pathlib import Path

from dpr.cli.plain_arguments import PlainParser, add_read_settings, read_options

EXAMPLES = """examples:
  dpr check-data train.jsonl
  dpr check-data train.jsonl dev=dev.jsonl encoder.pretrained_model_cfg=bert-base-uncased encoder.sequence_length=256 --strict
"""


def main(argv: list[str]) -> int:
    """Counts, lengths, repeats, contradictions and overlap of training data, and five records as the model will see them.

    Ends with 0, or with --strict and a problem with 3. Any format that dpr prepare knows.
    """
    parser = PlainParser(prog="dpr check-data", operands="FILE [FILE ...]", description=main.__doc__, epilog=EXAMPLES)
    parser.add_argument("files", nargs="+", metavar="FILE", help="training files, folders or patterns; together one data set")
    parser.setting("dev", also=("dev_datasets",), action="append", type=Path, metavar="FILE", help="validation data, for the overlap")
    tokenizer = "model name, model folder, checkpoint or run folder whose tokenizer counts (default: count words)"
    parser.setting("tokenizer", also=("encoder.pretrained_model_cfg", "model_file"), default="", metavar="NAME", help=tokenizer)
    longest, also = "longest passage in tokens (default 256)", ("encoder.sequence_length",)
    parser.setting("sequence_length", also=also, type=int, default=0, metavar="N", help=longest)
    longest, also = "longest question (default: the same)", ("encoder.question_length",)
    parser.setting("question_length", also=also, type=int, default=0, metavar="N", help=longest)
    parser.setting("query_prefix", default="", metavar="TEXT", help="put before every question as it is, as datasets.<name>.query_prefix")
    parser.setting("passage_prefix", default="", metavar="TEXT", help="the same before every passage")
    add_read_settings(parser)
    parser.setting("strict", action="store_true", help="end with 3 where there is a problem")
    options = parser.parse(argv)
    from dpr.core.logs import configure_logging
    from dpr.formats.text_input import expand_files
    from dpr.preparation.data_check import check_files
    from dpr.preparation.data_report import open_tokenizer, report, require_rows

    configure_logging()
    tensorizer, prefixes = None, {"question": options.query_prefix, "passage": options.passage_prefix}
    if options.tokenizer:
        lengths = {name: getattr(options, name) or None for name in ("sequence_length", "question_length")}
        tensorizer = open_tokenizer(options.tokenizer, **lengths)
        for side, prompt in (("query", tensorizer.text.query_prompt), ("passage", tensorizer.text.passage_prompt)):
            key = f"{side}_prefix"
            agreed = tensorizer.text.agreed_prefix(getattr(options, key), prompt, key=key)
            prefixes["question" if side == "query" else side] = agreed or ""
    train = check_files(expand_files(options.files), read_options(options))
    dev = check_files(expand_files(options.dev), read_options(options)) if options.dev else None
    lines, problems = report(train, dev, tensorizer, prefixes)
    print("\n".join(lines))
    require_rows(train, "train")
    if not options.tokenizer:
        print("\nlengths are in words; encoder.pretrained_model_cfg=NAME or model_file=FOLDER counts tokens")
    return 3 if options.strict and problems else 0
