"""``dpr score``: a teacher's scores for training data."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from dpr.cli.mine import BM25_ONLY, ENCODER_ONLY, MODELS_ONLY, add_model_settings, add_run_settings, given, model_settings
from dpr.cli.plain_arguments import PlainParser
from dpr.core.errors import ConfigError

if TYPE_CHECKING:
    from dpr.mining.scoring import Teacher

EXAMPLES = """examples:
  dpr score train.jsonl out=train_scored.jsonl cross_encoder=ms-marco-cross-encoder
  dpr score train.jsonl out=train_scored.jsonl model_file=runs/large
  dpr score train.jsonl out=train_scored.jsonl corpus=corpus.tsv processes=2
  dpr score train.jsonl out=train_scored.jsonl corpus=corpus.tsv model_file=runs/first hybrid=linear hybrid_weight=0.3
"""
_HYBRID_ONLY = ("hybrid_weight", "hybrid_depth")


def main(argv: list[str]) -> int:
    """Adds a teacher_score to every passage of training data of any format that dpr prepare knows, and prints what they are like.

    The teacher is a cross-encoder (its log-odds), a bi-encoder (its scores), BM25, or a hybrid of the last two. Rerun the same command to
    resume a killed run; a finished one is not repeated.
    """
    options = _parser().parse(argv)
    _refuse_what_does_nothing(options)
    from dpr.core.logs import configure_logging
    from dpr.formats.training_sets import open_training_set
    from dpr.mining.scoring import audit_lines, score_passages

    configure_logging()
    teacher = _teacher(options)
    train = open_training_set(options.files, name="train", **given(options, ("on_bad_row", "max_bad_rows")))
    audit = score_passages(train, options.out, teacher, **given(options, ("corpus", "processes", "overwrite")))
    print("\n".join(audit_lines(audit)))
    print(f"{options.out}: {audit['counts']['passages with a score']:,} scores")
    return 0


def _refuse_what_does_nothing(options: Namespace) -> None:
    """Raises ConfigError for settings of a teacher that is not asked."""
    if options.cross_encoder and options.model_file:
        raise ConfigError("cross_encoder and model_file are mutually exclusive: one teacher scores; leave one of them out")
    is_hybrid = options.hybrid != "none"
    if is_hybrid and not options.model_file:
        raise ConfigError(f"hybrid={options.hybrid} joins a model with BM25; add model_file=<folder>")
    idle: dict[str, str] = {}
    if (options.cross_encoder or options.model_file) and not is_hybrid:
        idle |= dict.fromkeys((*BM25_ONLY, "corpus"), "BM25 and hybrids")
    if not is_hybrid:
        idle |= dict.fromkeys(_HYBRID_ONLY, "hybrids; add hybrid=linear")
    if not options.model_file:
        idle |= dict.fromkeys(ENCODER_ONLY, "a model; add model_file=<folder>")
        idle |= dict.fromkeys(() if options.cross_encoder else MODELS_ONLY, "models; add model_file=<folder> or cross_encoder=<folder>")
    for name, owner in idle.items():
        if not any(getattr(options, name) is nothing for nothing in (None, False)):
            raise ConfigError(f"{name} is a setting of {owner}")
    if options.cross_encoder and options.processes > 1:
        raise ConfigError("a cross-encoder scores in one process with all cores; leave processes out")


def _teacher(options: Namespace) -> Teacher:
    from dpr.jobs.mine import dense_search, lexical_search, open_cross_encoder
    from dpr.mining.scoring import Teacher

    if options.cross_encoder:
        return Teacher(open_cross_encoder(options.cross_encoder, **given(options, MODELS_ONLY)))
    lexical = lexical_search(**given(options, BM25_ONLY))
    if not options.model_file:
        return Teacher(searches=(lexical,))
    dense = dense_search(model_settings(options))
    if options.hybrid == "none":
        return Teacher(searches=(dense,))
    values = {name.removeprefix("hybrid_"): value for name, value in given(options, _HYBRID_ONLY).items()}
    return Teacher(searches=(dense, lexical), **values)


def _parser() -> PlainParser:
    parser = PlainParser(prog="dpr score", operands="FILE [FILE ...]", description=main.__doc__, epilog=EXAMPLES)
    parser.add_argument("files", nargs="+", metavar="FILE", help="training files, folders or patterns; together one data set")
    parser.setting("out", type=Path, required=True, metavar="FILE", help="file to write; .gz is packed")
    parser.setting("cross_encoder", metavar="FOLDER", help="folder of a sequence classifier that reads question and passage together")
    model_file = "checkpoint, run folder, Hugging Face or sentence-transformers folder whose scores are taken (default: BM25)"
    parser.setting("model_file", metavar="FOLDER", help=model_file)
    hybrid = "linear: the weighted sum of model_file's and BM25's scores by which dpr retrieve hybrid=linear ranks (default none)"
    parser.setting("hybrid", choices=("none", "linear"), default="none", help=hybrid)
    parser.setting("hybrid_weight", type=float, metavar="X", help="the model's share in it, 0 to 1 (default 0.3)")
    depth = "passages that each side ranks; one that neither lists has 0 (default 100)"
    parser.setting("hybrid_depth", type=int, metavar="N", help=depth)
    corpus = "passages whose words BM25 counts and that a hybrid ranks (default: those of the training data)"
    parser.setting("corpus", type=Path, metavar="FILE", help=corpus)
    add_model_settings(parser)
    add_run_settings(parser, "score by BM25 or by vectors")
    return parser
