"""The stages of ``dpr adapt train=`` after the labelled questions are split: fine-tune the given model, choose on
the dev questions what to search with, and test that once.

Every choice searches the whole corpus (``label_choice.py`` has its rule).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from dpr.adaptation.choices import (
    DEPTH,
    METRIC,
    WEIGHT_OF_GIVEN,
    AdaptTexts,
    labelled_training,
    open_bm25,
    write_search,
)
from dpr.adaptation.encoder_stages import RESULT, embed_with_model, write_fitted
from dpr.adaptation.label_choice import (
    AVERAGE,
    BASE,
    TUNED,
    WEIGHTS,
    Measured,
    chosen_model,
    chosen_weight,
    values_of,
)
from dpr.adaptation.label_split import LEAST_DEV, LEAST_FOR_TEST, LEAST_LABELS
from dpr.adaptation.settings import AdaptSettings
from dpr.adaptation.stages import AdaptFolder, Stages
from dpr.core.distributed import resolve_device
from dpr.data.text import QuestionForm
from dpr.evaluation.comparison import figures_of, rows_of
from dpr.evaluation.evaluator import Evaluator
from dpr.evaluation.ranking_metrics import text_table
from dpr.evaluation.significance import paired_test
from dpr.export.settings import MergeConfig
from dpr.formats.metrics_files import read_metrics
from dpr.formats.question_sets import read_qrels, read_questions
from dpr.formats.run_folders import RUN_FILE, write_run
from dpr.indexer.ranking import fuse_linear
from dpr.models.biencoder import BiEncoder
from dpr.models.properties import is_faster_in_bf16
from dpr.preparation.document_questions import DEV, TEST
from dpr.retrieval.dense import open_dense
from dpr.retrieval.rankings import facts_of
from dpr.retrieval.settings import RetrievalConfig
from dpr.retrieval.sides import Fusion, WordSide
from dpr.retrieval.sources import resolve_passage_sources
from dpr.storage.durable import write_json

STATIC = "static encoder"
MORE_LABELS = (
    "\nWith more labels: on four other collections, the average gained 0.02 nDCG@10 with 200 labelled questions,"
    " 0.03 with 400, and 0.04 with 600 or 800. The hybrid with BM25 gained at most half of that."
)
"""Gains by the number of labels, from ``benchmarks/results/labels.md``."""


class System(NamedTuple):
    """A model, and the stage that embedded the corpus with it."""

    model: str
    vectors: str


def adapt_to_labels(stages: Stages, config: AdaptSettings, texts: AdaptTexts) -> None:
    """Fine-tunes the given model on labelled questions, chooses, tests, and writes ``search.json``."""
    out = stages.out
    counts = texts.counts()
    has_dev = counts["dev questions"] >= LEAST_DEV
    precision = "bf16" if is_faster_in_bf16(resolve_device(config.device)) else "fp32"
    systems = {BASE: System(str(config.model_file), "base_vectors")}
    if has_dev:
        tuned = System(str(out / "tuned"), "tuned_vectors")
        average = System(str(out / "average" / "model"), "average_vectors")
        what = f"fine-tuning on {counts['train questions']:,} questions"
        training = labelled_training(config, texts, tuned.model, precision)
        stages.run("tuned", what, "train", training, [RUN_FILE], processes=config.processes)
        merge = MergeConfig(
            base=config.model_file,
            tuned=[tuned.model],
            weights=[0.5],
            out=average.model,
            device=config.device,
        )
        stages.run("average", "averaging both models", "merge", merge, ["model"])
        systems |= {AVERAGE: average, TUNED: tuned}
    for name, system in systems.items():
        embed_with_model(
            stages,
            config,
            system.vectors,
            texts.corpus,
            model=system.model,
            label=name,
            precision=precision,
        )

    searched = BASE
    weights = {BASE: WEIGHT_OF_GIVEN}
    if has_dev:
        measured = search_with(stages, config, texts, "choice", DEV, systems, dict.fromkeys(systems, WEIGHTS))
        searched = chosen_model(measured)
        weights = {name: chosen_weight(measured, name) for name in dict.fromkeys([BASE, searched])}

    # The folder's own model is the chosen one, so that every command that opens the folder gets it.
    whole = replace(config, corpus=str(texts.corpus), out=str(out))
    if config.static is None:
        kept = searched.replace(" ", "_")
        outputs = [RUN_FILE, kept]

        def keep(config: AdaptSettings) -> None:
            model = BiEncoder.load(systems[searched].model, torch.device("cpu"))
            model.save(AdaptFolder(out).model / kept, overwrite=True)
            write_run(AdaptFolder(out).model, {"best_checkpoint": kept, "last_checkpoint": kept})

        stages.run("model", f"keeping the {searched}", "adapt", whole, outputs, part=keep)
    else:
        what = f"distilling the {searched} into a static encoder of {config.static}"
        distilling = replace(whole, model_file=systems[searched].model)
        stages.run("model", what, "adapt", distilling, [RUN_FILE], part=write_fitted)
        searched = STATIC
        systems[STATIC] = System(str(AdaptFolder(out).model), "vectors")
        embed_with_model(stages, config, "vectors", texts.corpus, label=STATIC)
        weights[STATIC] = WEIGHT_OF_GIVEN
        if has_dev:
            only = {STATIC: systems[STATIC]}
            measured = search_with(stages, config, texts, "weight", DEV, only, {STATIC: WEIGHTS})
            weights[STATIC] = chosen_weight(measured, STATIC)
    weight = weights[searched]

    split = TEST if counts["test questions"] else DEV
    if counts[f"{split} questions"]:
        used = {name: systems[name] for name in weights}
        at = {name: sorted({0.0, 1.0, one}) for name, one in weights.items()}
        print_results(search_with(stages, config, texts, split, split, used, at), weights, searched, split)
    if not has_dev:
        print(
            f"\nThe base model was not fine-tuned: a choice needs {LEAST_DEV} dev questions, and there are"
            f" {counts['dev questions']}. From {LEAST_LABELS} labelled questions on, some are held out for it;"
            " dev=FILE names others."
        )
    elif split == DEV:
        print(
            "These questions chose the model and the weight, so their figures are too high. From"
            f" {LEAST_FOR_TEST} labelled questions on, some are held out for a test; test=FILE names others."
        )
    print(MORE_LABELS)
    write_search(out, texts.corpus, weight, vectors=systems[searched].vectors)
    write_json(out / RESULT, {"model": searched, "hybrid_weight": weight}, note={})


def print_results(measured: Measured, weights: Mapping[str, float], searched: str, split: str) -> None:
    """Prints the table of all systems, and what the chosen one gains."""
    runs = {"BM25": measured[BASE, 0.0]}
    for name, weight in weights.items():
        runs[name] = measured[name, 1.0]
        if 0.0 < weight < 1.0:
            runs[f"{name} + BM25, weight {weight:g}"] = measured[name, weight]
    num_questions = measured[BASE, 0.0].num_questions
    print(f"\n{num_questions:,} {split} questions, with 95 % intervals:")
    head, *body = rows_of(figures_of({split: runs}))
    print(text_table([head, *([label.removeprefix(f"{split}, "), *cells] for label, *cells in body)]))

    best = measured[searched, weights[searched]]
    print(f"\nSearch with {described(searched, weights[searched])}: nDCG@10 {best.metrics[METRIC]:.3f}.")
    others = {described(BASE, weights[BASE]): measured[BASE, weights[BASE]]}
    others |= {described(BASE, 1.0): measured[BASE, 1.0], described(BASE, 0.0): measured[BASE, 0.0]}
    for label, run in others.items():
        if run is not best:
            test = paired_test((values_of(run), values_of(best)))
            print(f"  {test.difference:+.3f} ({test.low:+.3f} to {test.high:+.3f}) over {label}")


def described(name: str, weight: float) -> str:
    """Returns the name of a system in a sentence."""
    if weight == 0.0:
        return "BM25 alone"
    return f"the {name} alone" if weight == 1.0 else f"the hybrid of the {name} and BM25, weight {weight:g}"


def search_with(
    stages: Stages,
    config: AdaptSettings,
    texts: AdaptTexts,
    stage: str,
    split: str,
    systems: Mapping[str, System],
    weights: Mapping[str, Sequence[float]],
) -> Measured:
    """Runs a stage that searches the corpus with the questions of a split, by every system at its weights.
    Returns the metrics, which ``<stage>/<system>_<weight>.json`` hold."""
    files = {
        (name, weight): f"{name.replace(' ', '_')}_{weight:g}.json"
        for name in systems
        for weight in weights[name]
    }

    def search(config: AdaptSettings) -> None:
        questions = read_questions(texts.prepared / f"{split}_questions.jsonl")
        evaluator = Evaluator(questions, read_qrels(texts.prepared / f"{split}_qrels.tsv"))
        asked = [question.text for question in questions]
        by_words = WordSide(open_bm25(stages.out, texts.corpus)).retrieve(asked, DEPTH)
        sources = resolve_passage_sources([str(texts.corpus)], {})
        device = resolve_device(config.device)
        for name, system in systems.items():
            vectors = str(stages.out / system.vectors / "corpus_0")
            opened = RetrievalConfig(model_file=system.model, encoded_ctx_files=vectors)
            by_vectors = open_dense(opened, sources, form=QuestionForm(), device=device).retrieve(
                asked, DEPTH
            )
            for weight in weights[name]:
                rankings = fuse_linear(by_vectors, by_words, weight=weight, k=evaluator.num_docs)
                judged = evaluator.evaluate(rankings)
                facts = facts_of("hybrid", split, Fusion(weight))
                evaluator.write_report(
                    stages.out / stage / files[name, weight], facts, asked, judged, note={}
                )

    searching = replace(config, corpus=str(texts.corpus), out=str(stages.out))
    what = f"searching the corpus with the {split} questions"
    stages.run(stage, what, "adapt", searching, list(files.values()), part=search)
    return {key: read_metrics(stages.out / stage / file) for key, file in files.items()}
