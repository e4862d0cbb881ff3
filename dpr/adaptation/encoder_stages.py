"""The stages after texts are prepared, which make an encoder and the folder that is searched by it and BM25."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dpr.adaptation import linear_layer, static_student
from dpr.adaptation.choices import (
    METRIC,
    WEIGHT_OF_GIVEN,
    AdaptTexts,
    chosen_weight,
    search_settings,
    training_settings,
    will_fit,
    write_search,
)
from dpr.adaptation.settings import AdaptSettings
from dpr.adaptation.stages import AdaptFolder, Stages
from dpr.core.distributed import resolve_device
from dpr.data.pairs import PseudoPairs
from dpr.embedding.settings import EmbedConfig
from dpr.formats.run_folders import RUN_FILE, write_run
from dpr.models.biencoder import BiEncoder
from dpr.preparation.settings import NewEncoderSettings
from dpr.storage.durable import write_json
from dpr.storage.untrusted import read_json

RESULT = "adapted.json"
FITTED = "fitted"
"""Checkpoint of the fitted model in the run of its stage."""


def make_searchable(stages: Stages, config: AdaptSettings, texts: AdaptTexts) -> float:
    """Fits the given model or trains an encoder, and writes ``search.json`` and ``adapted.json``. Returns the
    encoder's share in the hybrid."""
    return (
        fit_given_model(stages, config, texts) if will_fit(config) else train_encoder(stages, config, texts)
    )


def fit_given_model(stages: Stages, config: AdaptSettings, texts: AdaptTexts) -> float:
    """Fits a linear layer or a static table to the corpus. Nothing is chosen by pseudo-questions."""
    out = stages.out
    fitting = replace(config, corpus=str(texts.without_questions), out=str(out))
    what = "fitting a linear layer on top of the model to the corpus"
    if config.static is not None:
        what = f"distilling the model into a static encoder of {config.static}"
    stages.run("model", what, "adapt", fitting, [RUN_FILE], part=write_fitted)
    embed_with_model(stages, config, "vectors", texts.corpus)
    if texts.without_questions != texts.corpus:
        embed_with_model(stages, config, "evaluation", texts.without_questions)
    write_search(out, texts.corpus, WEIGHT_OF_GIVEN)
    write_json(out / RESULT, {"hybrid_weight": WEIGHT_OF_GIVEN}, note={})
    if config.static is None:
        print("\nA linear layer on top of the model was fitted to pseudo-questions from the corpus.")
        print("The model's own weights are unchanged. Real questions are needed to measure the improvement.")
    else:
        print("\nThe model was distilled into a static encoder, on passages and pseudo-questions from them.")
        print("Real questions are needed to measure its quality.")
    print(f"The hybrid weights the encoder by {WEIGHT_OF_GIVEN:g} and BM25 by {1 - WEIGHT_OF_GIVEN:g}.")
    return WEIGHT_OF_GIVEN


def write_fitted(config: AdaptSettings) -> None:
    """Writes a run with the given model and the layer or static towers that were fitted to the corpus."""
    folder = AdaptFolder(Path(str(config.out))).model
    model = BiEncoder.load(str(config.model_file), resolve_device(config.device))
    if config.static is not None:
        pairs = PseudoPairs(str(config.corpus), kinds=config.pairs)
        most = config.max_pairs or static_student.MOST_QUESTIONS
        model = static_student.learn_static(
            model, pairs, sides=config.static, most_questions=most, seed=config.seed
        )
    else:
        # Whole sentences and titles teach more than shortened crops, which are for an untrained model.
        kinds = ["sentence", "title"] if config.pairs == "mixed" else config.pairs
        pairs = PseudoPairs(str(config.corpus), kinds=kinds, drop_words=0.0)
        linear_layer.add_fitted_layer(
            model, pairs, most_questions=config.max_pairs or linear_layer.MOST_QUESTIONS, seed=config.seed
        )
    model.save(folder / FITTED, overwrite=True)
    write_run(folder, {"best_checkpoint": FITTED, "last_checkpoint": FITTED})


def train_encoder(stages: Stages, config: AdaptSettings, texts: AdaptTexts) -> float:
    """Trains a new encoder or a given backbone on pairs, and chooses its share on the dev questions."""
    out = stages.out
    folder = AdaptFolder(out)
    if config.model_file is None:
        empty = NewEncoderSettings(
            corpus=str(texts.corpus),
            questions=texts.vocabulary,
            out=str(folder.untrained),
            layers=0,
            hidden=1024,
        )
        stages.run("encoder", "creating a static encoder", "new-encoder", empty, [folder.untrained.name])

    final = training_settings(config, texts)
    stages.run("model", "training the encoder", "train", final, [RUN_FILE], processes=config.processes)

    embed_with_model(stages, config, "vectors", texts.corpus)
    embed_with_model(stages, config, "evaluation", texts.without_questions)

    hybrid = search_settings(config, texts, "weight", "dev")
    hybrid.tune_hybrid_weight = True
    hybrid.tune_metric = METRIC
    what = "choosing the hybrid's weight on the dev questions"
    metrics = folder.metrics("weight")
    stages.run("weight", what, "retrieve", hybrid, [metrics.name, folder.evaluation_index.name])
    values = read_json(metrics)["tried_weights"]
    by_weight = {float(weight): value for weight, value in values.items()}
    weight = chosen_weight(by_weight)

    write_search(out, texts.corpus, weight)
    num_cut = texts.counts().get("pseudo-questions")
    queries = f"{num_cut:,} pseudo-questions from the texts" if num_cut else "the dev questions"
    print(f"\nnDCG@10 on {queries}, used to choose the weight, not to measure quality:")
    print(f"  BM25     {by_weight[0.0]:.3f}")
    print(f"  encoder  {by_weight[1.0]:.3f}")
    print(f"  hybrid   {by_weight[weight]:.3f}, with weight {weight:g} for the encoder")
    reached = {"bm25": by_weight[0.0], "dense": by_weight[1.0], "hybrid": by_weight[weight]}
    write_json(out / RESULT, {"pseudo_ndcg@10": reached, "hybrid_weight": weight}, note={})
    return weight


def embed_with_model(
    stages: Stages,
    config: AdaptSettings,
    name: str,
    corpus: Path,
    *,
    model: str | None = None,
    label: str = "model",
    precision: str = "fp32",
) -> None:
    """Runs the stage ``name``, which makes the vectors of a corpus by the folder's model, or by another one,
    which messages call ``label``."""
    folder = AdaptFolder(stages.out)
    vectors = EmbedConfig(
        model_file=model or str(folder.model),
        ctx_src=str(corpus),
        out_file=str(stages.out / name / "corpus"),
        device=config.device,
        precision=precision,
    )
    what = f"embedding {corpus} with the {label}"
    stages.run(name, what, "embed", vectors, [folder.vectors.name], processes=config.processes)
