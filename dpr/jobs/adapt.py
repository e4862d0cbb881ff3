"""``dpr adapt CORPUS``: a retriever that can be searched, from passages without questions, with one command.

It runs other commands one after another, as the stages of one folder (``dpr/adaptation/stages.py``).
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpr.adaptation.choices import (
    METRIC,
    WEIGHT_OF_GIVEN,
    Texts,
    chosen_weight,
    find_model,
    is_fitted,
    search_of,
    training,
)
from dpr.adaptation.fitting import write_fitted
from dpr.adaptation.searchable import write_search
from dpr.adaptation.settings import AdaptSettings
from dpr.adaptation.stages import Stages, stages_in
from dpr.core.errors import ConfigError
from dpr.data.pairs import kinds_of
from dpr.embedding.settings import EmbedConfig
from dpr.formats.run_folders import RUN_FILE
from dpr.jobs import embed, prepare, retrieve, train
from dpr.preparation.pseudo_questions import HELD_BACK
from dpr.preparation.settings import NewEncoderSettings, PrepareSettings
from dpr.storage.checksums import content_sha256
from dpr.storage.durable import write_json
from dpr.storage.untrusted import read_json

JOBS: dict[str, Callable[[Any], Any]] = {
    "prepare": prepare.run,
    "new-encoder": prepare.make_encoder,
    "train": train.run,
    "embed": embed.run,
    "retrieve": retrieve.run,
    "adapt": write_fitted,
}
"""Commands that stages run; for ``adapt`` itself, the part that fits a given model to the corpus."""
RESULT = "adapted.json"


def run(config: AdaptSettings) -> None:
    """Runs all stages and prints their results."""
    kinds_of(config.pairs, setting="pairs")
    out = Path(str(config.out))
    config.model_file, content = find_model("model_file", config.model_file, out)
    if config.static is not None and not is_fitted(config):
        raise ConfigError(
            f"static={config.static}, but model_file={config.model_file} does not say how a text becomes a"
            " vector; take a checkpoint, or a model of sentence-transformers"
        )
    start = time.monotonic()
    corpus = Path(str(config.corpus))
    made_of = {
        "corpus": content_sha256(corpus),
        "model_file": content,
        "static": config.static,
        "pairs": config.pairs,
        "max_pairs": config.max_pairs,
        "seed": config.seed,
    }
    train_sets = {"corpus": {"file": str(corpus), "pairs": config.pairs, "held_back": HELD_BACK}}
    prepared = out / "pseudo" / "questions"
    with stages_in(out, made_of, first=("pseudo", "model"), jobs=JOBS) as stages:
        evaluated = corpus
        if not is_fitted(config):
            evaluated = prepared / "evaluation_corpus.jsonl"
            cut = PrepareSettings(sources=[str(corpus)], out=str(prepared), pairs="mixed")
            stages.run(
                "pseudo", "pseudo-questions, to choose the hybrid's weight by", "prepare", cut, ["questions"]
            )
        texts = Texts(prepared, corpus, evaluated, train_sets)
        adapt(stages, config, texts)

    name = shlex.quote(str(out))
    print(f"\nIt took {(time.monotonic() - start) / 60:.1f} minutes.\n")
    print(f'Search by hand:   dpr search {name} "your question"')
    print(f"In a browser:     dpr serve {name}")
    print(f"How good is it?   dpr evaluate run={name} set=FOLDER, with questions and judgements of yours")


def adapt(stages: Stages, config: AdaptSettings, texts: Texts) -> float:
    """Runs all stages after the first, which has prepared the texts; writes ``search.json`` and
    ``adapted.json``. Returns the encoder's share in the hybrid."""
    out = stages.out
    if is_fitted(config):  # then nothing is chosen by pseudo-questions
        fitting = replace(config, corpus=str(texts.evaluated), out=str(out))
        what = "a linear layer behind the model, fitted to the corpus"
        if config.static is not None:
            what = f"a static encoder of {config.static}, which learns the model's vectors"
        stages.run("model", what, "adapt", fitting, [RUN_FILE])
        embed_with_model(stages, config, "vectors", texts.corpus)
        if texts.evaluated != texts.corpus:
            embed_with_model(stages, config, "evaluation", texts.evaluated)
        write_search(out, texts.corpus, WEIGHT_OF_GIVEN)
        write_json(out / RESULT, {"hybrid_weight": WEIGHT_OF_GIVEN}, note={})
        if config.static is None:
            print("\nA linear layer behind the model was fitted to questions cut from the corpus.")
            print("The model's own weights are as they were. Only real questions can tell what it gains.")
        else:
            print(
                "\nA static encoder has learned the model's vectors of passages and of questions cut from them."
            )
            print("Only real questions can tell what it loses.")
        print(f"The encoder's weight in the hybrid is {WEIGHT_OF_GIVEN:g}.")
        return WEIGHT_OF_GIVEN

    if config.model_file is None:
        empty = NewEncoderSettings(
            corpus=str(texts.corpus),
            questions=texts.vocabulary,
            out=str(out / "encoder" / "untrained"),
            layers=0,
            hidden=1024,
        )
        stages.run("encoder", "a static encoder without weights", "new-encoder", empty, ["untrained"])

    final = training(config, texts)
    stages.run("model", "training", "train", final, [RUN_FILE], processes=config.processes)

    embed_with_model(stages, config, "vectors", texts.corpus)
    embed_with_model(stages, config, "evaluation", texts.evaluated)

    hybrid = search_of(config, texts, "weight", "dev")
    hybrid.tune_hybrid_weight = True
    hybrid.tune_metric = METRIC
    what = "the hybrid's weight, on the dev questions"
    stages.run("weight", what, "retrieve", hybrid, ["metrics.json", "index"])
    values = read_json(out / "weight" / "metrics.json")["tried_weights"]
    by_weight = {float(weight): value for weight, value in values.items()}
    weight = chosen_weight(by_weight)

    write_search(out, texts.corpus, weight)
    num_cut = texts.counts().get("pseudo-questions")
    queries = f"{num_cut:,} pseudo-questions, made from the texts" if num_cut else "the dev questions"
    print(f"\nnDCG@10 on {queries}, which choose the weight and are no measure of quality:")
    both = f"both {by_weight[weight]:.3f}, with weight {weight:g}"
    print(f"  {by_weight[0.0]:.3f}  BM25; the encoder {by_weight[1.0]:.3f}; {both}")
    chosen = {
        "pseudo_ndcg@10": {
            "bm25": by_weight[0.0],
            "dense": by_weight[1.0],
            "hybrid": by_weight[weight],
        },
        "hybrid_weight": weight,
    }
    write_json(out / RESULT, chosen, note={})
    return weight


def embed_with_model(stages: Stages, config: AdaptSettings, name: str, corpus: Path) -> None:
    """Runs the stage ``name``, which makes the vectors of a corpus."""
    vectors = EmbedConfig(
        model_file=str(stages.out / "model"),
        ctx_src=str(corpus),
        out_file=str(stages.out / name / "corpus"),
        device=config.device,
    )
    what = f"the vectors of {corpus}"
    stages.run(name, what, "embed", vectors, ["corpus_0"], processes=config.processes)
