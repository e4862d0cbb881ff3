"""``dpr quickstart FOLDER``: a retriever for a folder of documents, compared with BM25, with one command.

It runs other commands one after another, as the stages of one folder (``dpr/adaptation/stages.py``).
"""

from __future__ import annotations

import shlex
import time
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path

from dpr.adaptation.choices import (
    AdaptTexts,
    clearly_best,
    find_model,
    search_settings,
    will_fit,
    write_search,
)
from dpr.adaptation.encoder_stages import make_searchable
from dpr.adaptation.labelled_stages import adapt_to_labels
from dpr.adaptation.settings import AdaptSettings, QuickstartSettings
from dpr.adaptation.stages import DETAILS, AdaptFolder, Stages, stages_in
from dpr.core.logs import duration
from dpr.jobs import compare
from dpr.jobs.adapt import STAGE_JOBS
from dpr.preparation.document_questions import GIVEN
from dpr.preparation.folder_data import content_of_documents, find_documents
from dpr.preparation.settings import FolderSettings, PrepareSettings
from dpr.storage.checksums import content_sha256
from dpr.storage.untrusted import read_json

MADE = (
    "Training and test questions were both generated from the texts, which favours the encoder. Expect lower"
    " results on real questions; questions=FILE measures with your own."
)
SYSTEMS = {"bm25": "BM25", "dense": "encoder", "hybrid": "hybrid"}
"""Stages that evaluate on test questions, and their names in tables."""


def run(config: QuickstartSettings) -> None:
    """Runs all stages and prints their results."""
    out = Path(str(config.out))
    model_file, content = find_model("encoder", None if config.encoder == "static" else config.encoder, out)
    start = time.monotonic()
    folder = Path(str(config.folder))
    made_of = asdict(config.part(FolderSettings)) | {"encoder": content}
    if config.questions is not None:
        made_of["questions"] = content_sha256(Path(config.questions))
    documents = find_documents(folder, config.types)
    made_of["folder"] = content_of_documents(documents)

    prepared = out / "data" / "texts"
    evaluated = prepared / "evaluation_corpus.jsonl"
    train_sets = {
        "corpus": {"file": str(evaluated), "pairs": "mixed"},
        "questions": {"file": str(prepared / "train.jsonl")},
    }
    vocabulary = [str(prepared / "train.jsonl")]
    texts = AdaptTexts(prepared, prepared / "corpus.jsonl", evaluated, train_sets, vocabulary)
    name = shlex.quote(str(out))
    with stages_in(out, made_of, first=("data",), jobs=STAGE_JOBS) as stages:
        reading = PrepareSettings(
            sources=[str(folder)],
            out=str(prepared),
            words=config.words,
            overlap=config.overlap,
            types=config.types,
            seed=config.seed,
            questions=config.questions,
        )
        what = f"splitting {len(documents)} files into passages, generating training and test questions"
        stages.run("data", what, "prepare", reading, [prepared.name])
        if not texts.counts()["train questions"]:
            write_search(out, texts.corpus, None)
            passages = texts.counts()["passages"]
            print(f"\n{passages:,} passages yield too few questions to train an encoder; BM25 searches them.")
            print(
                "With a larger folder, or with your own questions (questions=FILE), an encoder is trained too.\n"
            )
            print(f'Search:           dpr search {name} "your question"')
            return
        trained = AdaptSettings(out=str(out), model_file=model_file, device=config.device)
        is_labelled = config.questions is not None and will_fit(trained)
        if is_labelled:
            adapt_to_labels(stages, trained, texts)
        else:
            evaluate_made(stages, trained, texts)

    if texts.counts()["unread files"]:
        listed = texts.prepared / "unread.jsonl"
        print(f"{texts.counts()['unread files']:,} files could not be read: {listed} says why")
    print(f"Finished in {duration(time.monotonic() - start)}.\n")
    print(f'Search:           dpr search {name} "your question"')
    print(f"In a browser:     dpr serve {name} metadata=file")
    if not is_labelled:
        print(f"Report:           {out / 'report.html'}")
    print(f"Details:          {out / DETAILS}")


def evaluate_made(stages: Stages, trained: AdaptSettings, texts: AdaptTexts) -> None:
    """Trains an encoder on generated questions and prints a comparison with BM25 on those held out, or on given
    ones."""
    out = stages.out
    with redirect_stdout(stages.details):
        weight = make_searchable(stages, trained, texts)
    metrics = {system: AdaptFolder(out).metrics(system) for system in SYSTEMS}
    for system, label in SYSTEMS.items():
        search = search_settings(trained, texts, system, "test")
        search.hybrid_weight = weight
        if system == "bm25":
            search.indexer.kind = "bm25"
        if system != "hybrid":
            search.hybrid = "none"
        stages.run(
            system,
            f"evaluating {label} on the test questions",
            "retrieve",
            search,
            [metrics[system].name],
        )

    runs = [f"{SYSTEMS[system]}={file}" for system, file in metrics.items()]
    counts = texts.counts()
    by_kind = counts["test questions by kind"]
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in by_kind.items())
    asked = f"{counts['test questions']:,} held-out questions ({kinds})"
    print(f"\n{counts['passages']:,} passages of {counts['files']:,} files; {asked}.")
    is_made = GIVEN not in by_kind
    notes = [MADE] if is_made else []
    print("\n".join(notes))
    compare.run(compare.CompareSettings(runs=runs, metrics=["mrr@10"], out=str(out / "compared.json")))
    compare.report(compare.ReportSettings(folder=str(out), runs=runs), notes=notes)

    reached = {system: read_json(file)["metrics"] for system, file in metrics.items()}
    shares = {system: values["accuracy@5"] for system, values in reached.items()}
    print(
        f"\nThe right passage is among the first five for {shares['bm25']:.0%} of the questions with BM25,"
        f" {shares['dense']:.0%} with the trained encoder, {shares['hybrid']:.0%} with the hybrid of both."
    )
    best = "hybrid"
    if not is_made:  # pseudo-questions choose nothing: the encoder was trained on such
        best = clearly_best({system: values["mrr@10"] for system, values in reached.items()}, best)
    if best == "hybrid":
        print("dpr search uses the hybrid by default.")
    else:
        print(
            f"On your questions, {SYSTEMS[best]} alone is clearly better than the hybrid: search with --mode {best}."
        )
