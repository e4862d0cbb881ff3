"""``dpr mine``: hard negatives for training data."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpr.cli.plain_arguments import PlainParser
from dpr.core.cluster_settings import ClusterSettings
from dpr.core.errors import ConfigError
from dpr.core.precision import PRECISIONS
from dpr.core.settings import settings
from dpr.mining.settings import MiningSettings, ModelSearchSettings
from dpr.models.settings import GivenTextSettings

if TYPE_CHECKING:
    from dpr.mining.search import Search

EXAMPLES = """examples:
  dpr mine train.jsonl out=train_bm25.jsonl
  dpr mine train.jsonl corpus=corpus.tsv out=train_bm25.jsonl per_question=10 from_rank=5 to_rank=100 pick=sample
  dpr mine train.jsonl corpus=corpus.tsv out=train_dense.jsonl model_file=runs/first max_relative_score=0.95
  dpr mine train.jsonl corpus=corpus.tsv out=train_dense.jsonl model_file=runs/first vectors=runs/first/vectors_0 absolute_margin=0.1
  dpr mine train.jsonl corpus=corpus.tsv out=train_dense.jsonl model_file=runs/e5 "query_prefix=query: " "passage_prefix=passage: "
  dpr mine train.jsonl corpus=corpus.tsv out=train_dense.jsonl model_file=runs/first cross_encoder=ms-marco-cross-encoder veto_above=0.5
"""
BM25_ONLY = ("k1", "b")
_PROMPTS = ("query_prompt", "passage_prompt", "title_template", "allow_other_prompts")
ENCODER_ONLY = ("pretrained_model_cfg", "pooling", "query_prefix", "passage_prefix", "prompt", *_PROMPTS)
MODELS_ONLY = ("device", "precision", "batch_tokens")


def main(argv: list[str]) -> int:
    """Adds hard negatives by BM25, or by a model, to training data of any format that dpr prepare knows, and prints an audit of them.

    Rerun the same command to resume a killed run; a finished one is not repeated.
    """
    options = _parser().parse(argv)
    _refuse_what_does_nothing(options)
    cluster = _cluster(options)
    from dpr.core.logs import configure_logging
    from dpr.formats.training_sets import open_training_set
    from dpr.jobs.mine import open_cross_encoder, workers_elsewhere
    from dpr.mining.audit import audit_lines
    from dpr.mining.job import mine

    configure_logging()
    mining = MiningSettings(**{name: getattr(options, name) for name in MiningSettings.__dataclass_fields__})
    if options.cross_encoder and mining.veto_above is None:
        mining.veto_above = 0.5
    mining.check()
    search = _search(options)
    open_scorer = partial(open_cross_encoder, options.cross_encoder, **given(options, MODELS_ONLY)) if options.cross_encoder else None
    has_model = bool(options.model_file or options.cross_encoder)
    device = options.device if has_model else "cpu"
    elsewhere = workers_elsewhere(cluster, folder=options.out.parent, device=device, cross_encoder=open_scorer)
    train = open_training_set(options.files, name="train", **given(options, ("on_bad_row", "max_bad_rows")))
    scorer = open_scorer() if open_scorer else None
    run = given(options, ("corpus", "processes", "overwrite"))
    audit = mine(train, options.out, mining, search=search, scorer=scorer, elsewhere=elsewhere, **run)
    print("\n".join(audit_lines(audit)))
    print(f"{options.out}: {audit['counts']['questions']:,} questions, {audit['counts']['negatives']:,} mined negatives")
    return 0


def _refuse_what_does_nothing(options: Namespace) -> None:
    """Raises ConfigError for settings of a model, BM25 or cross-encoder that is not used."""
    idle = {name: "BM25; leave model_file out" for name in BM25_ONLY if options.model_file}
    idle |= {name: "a model; add model_file=<folder>" for name in ("vectors", *ENCODER_ONLY) if not options.model_file}
    if not options.cross_encoder:
        idle |= {"veto_above": "a cross-encoder; add cross_encoder=<folder>"}
        idle |= {name: "models; add model_file=<folder> or cross_encoder=<folder>" for name in MODELS_ONLY if not options.model_file}
    for name, owner in idle.items():
        if not any(getattr(options, name) is nothing for nothing in (None, False)):
            raise ConfigError(f"{name} is a setting of {owner}")


def _cluster(options: Namespace) -> ClusterSettings:
    cluster = ClusterSettings(**{name: getattr(options, f"cluster_{name}") for name in ClusterSettings.__dataclass_fields__})
    cluster.check("cluster.")
    if cluster.kind != "none" and options.processes > 1:
        raise ConfigError(f"processes={options.processes} and cluster=ray are mutually exclusive; cluster.workers limits its workers")
    return cluster


def given(options: Namespace, names: Sequence[str]) -> dict[str, Any]:
    """The settings of these names that are given."""
    return {name: getattr(options, name) for name in names if getattr(options, name) is not None}


def _search(options: Namespace) -> Search:
    from dpr.jobs.mine import dense_search, lexical_search

    if not options.model_file:
        return lexical_search(options=options.indexer_options, **given(options, ("indexer", *BM25_ONLY)))
    return dense_search(model_settings(options), corpus=options.corpus)


def model_settings(options: Namespace) -> ModelSearchSettings:
    """The model that is named, and how it is used."""
    return ModelSearchSettings(**given(options, [name for name in ModelSearchSettings.__dataclass_fields__ if name in options]))


def _mapping(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(text)
    return value


def _parser() -> PlainParser:
    parser = PlainParser(prog="dpr mine", operands="FILE [FILE ...]", description=main.__doc__, epilog=EXAMPLES)
    parser.add_argument("files", nargs="+", metavar="FILE", help="training files, folders or patterns; together one data set")
    parser.setting("out", type=Path, required=True, metavar="FILE", help="file to write; .gz is packed")
    parser.setting("corpus", type=Path, metavar="FILE", help="passages to mine from (default: those of the training data)")
    for entry in settings(MiningSettings):
        parser.declared(entry, also=("margin",) if entry.key == "absolute_margin" else ())
    model_file = "checkpoint, run folder, Hugging Face or sentence-transformers folder to search with (default: BM25)"
    parser.setting("model_file", metavar="FOLDER", help=model_file)
    vectors = "vectors of the corpus by this model, by dpr embed; again for more (default: they are made)"
    parser.setting("vectors", also=("encoded_ctx_files",), action="append", metavar="FOLDER", help=vectors)
    cross_encoder = "folder of a sequence classifier that is asked about what would become a negative"
    parser.setting("cross_encoder", metavar="FOLDER", help=cross_encoder)
    indexer = (
        "bm25, with model_file exact, hnsw32, ivf, small, flat, hnsw or hnsw_sq, or a user-defined index, module:Class (default: the first)"
    )
    parser.setting("indexer", also=("indexer.kind",), metavar="KIND", help=indexer)
    options = "settings of the indexer as JSON, e.g. indexer.options='{\"store_n\": 32}'"
    parser.setting("indexer_options", also=("indexer.options",), type=_mapping, default={}, metavar="JSON", help=options)
    add_model_settings(parser)
    add_run_settings(parser, "search and filter")
    for entry in settings(ClusterSettings, "cluster_"):
        name = entry.key.removeprefix("cluster_")
        parser.declared(entry, also=("cluster",) if name == "kind" else (f"cluster.{name}",))
    return parser


def add_model_settings(parser: PlainParser) -> None:
    """Adds what decides the vectors of a bi-encoder, and where models run."""
    query_prefix = "put before every question as it is for model_file, as in training (datasets.<name>.query_prefix); prompts are stored"
    parser.setting("query_prefix", metavar="TEXT", help=query_prefix)
    parser.setting("passage_prefix", metavar="TEXT", help="the same before every passage; vectors must have been made with it")
    prompt = "name of the model's prompt for these questions (encoder.prompts); without it those of encoder.query_prompt"
    parser.setting("prompt", metavar="NAME", help=prompt)
    for entry in settings(GivenTextSettings):
        if entry.key in _PROMPTS:
            parser.declared(entry, also=(f"encoder.{entry.key}",))
    parser.setting("device", metavar="D", help="cpu, cuda, cuda:N (default: CUDA when there is one)")
    parser.setting("precision", choices=tuple(PRECISIONS), help="arithmetic of the model (default fp32)")
    parser.setting("batch_tokens", type=int, metavar="N", help="tokens of a forward pass (default: 65,536 on a GPU, 4,096 on a CPU)")
    legacy = "whose config and tokenizer belong to a checkpoint file of the original DPR"
    parser.setting("pretrained_model_cfg", also=("encoder.pretrained_model_cfg",), metavar="FOLDER", help=legacy)
    pooling = "of a folder that states none: cls (default), mean, last or max; module:Class of a model_file with a user-defined pooling"
    parser.setting("pooling", also=("encoder.pooling",), metavar="NAME", help=pooling)


def add_run_settings(parser: PlainParser, do: str) -> None:
    """Adds BM25's constants, how bad rows are treated, and in how many processes it runs; ``do``: what these do."""
    parser.setting("k1", type=float, metavar="X", help="BM25's k1 (default 0.9)")
    parser.setting("b", type=float, metavar="X", help="BM25's b (default 0.4)")
    processes = f"processes that {do}, which share the CPU's cores (default %(default)s)"
    parser.setting("processes", type=int, default=1, metavar="N", help=processes)
    parser.setting("on_bad_row", choices=("fail", "skip"), default="fail", help="skip leaves bad rows out and lists them (default fail)")
    parser.setting("max_bad_rows", type=int, default=100, metavar="N", help="how many may be skipped (default %(default)s)")
    parser.setting("overwrite", action="store_true", help="replace what is at out")
