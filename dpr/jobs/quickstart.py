"""``dpr quickstart FOLDER``: from a folder of documents to a retriever that is evaluated and can be searched,
with one command."""

from __future__ import annotations

import shlex
import time
from dataclasses import asdict
from pathlib import Path

from dpr.jobs import compare, prepare, report, retrieve
from dpr.jobs.adapt import Texts, adapt, content_of_model, search_of, write_search
from dpr.jobs.compare import CompareSettings
from dpr.jobs.report import ReportSettings
from dpr.jobs.stages import stages_in
from dpr.preparation.folder_data import content_of_documents, find_documents
from dpr.preparation.settings import AdaptSettings, FolderSettings, PrepareSettings, QuickstartSettings
from dpr.storage.checksums import content_sha256
from dpr.storage.durable import read_json

SYSTEMS = {"bm25": "BM25", "dense": "trained", "hybrid": "hybrid"}
"""The stages that evaluate on test questions, and their names in tables."""


def run(config: QuickstartSettings) -> None:
    """Runs all stages and prints what came of them."""

    model_file = None if config.encoder == "static" else config.encoder
    start = time.monotonic()
    folder = Path(str(config.folder))
    out = Path(str(config.out))
    made_of = asdict(config.part(FolderSettings)) | {"encoder": content_of_model("encoder", model_file)}
    if config.questions is not None:
        made_of["questions"] = content_sha256(Path(config.questions))
    documents = find_documents(folder, config.types)
    made_of["folder"] = content_of_documents(documents)

    prepared = out / "data" / "texts"
    train_sets = {
        "corpus": {"file": str(prepared / "evaluation_corpus.jsonl"), "pairs": "mixed"},
        "questions": {"file": str(prepared / "train.jsonl")},
    }
    texts = Texts(prepared, prepared / "corpus.jsonl", train_sets, [str(prepared / "train.jsonl")])
    name = shlex.quote(str(out))
    with stages_in(out, made_of, first="data") as stages:
        reading = PrepareSettings(
            sources=[str(folder)],
            out=str(prepared),
            words=config.words,
            overlap=config.overlap,
            types=config.types,
            seed=config.seed,
            questions=config.questions,
            few=True,
        )
        what = f"{len(documents)} files: passages, training questions, held-out questions"
        stages.run("data", what, prepare, reading, [prepared.name])
        if not texts.counts()["train questions"]:
            write_search(out, texts.corpus, None)
            passages = texts.counts()["passages"]
            print(f"\n{passages:,} passages, too few questions in them to train on: BM25 searches them.")
            print("A larger folder, or questions=FILE with questions of yours, trains an encoder too.\n")
            print(f'Search by hand:   dpr search {name} "your question"')
            return
        trained = AdaptSettings(out=str(out), model_file=model_file, device=config.device)
        weight = adapt(stages, trained, texts)
        for system, label in SYSTEMS.items():
            search = search_of(trained, texts, system, "test")
            search.hybrid_weight = weight
            if system == "bm25":
                search.indexer.kind = "bm25"
            if system != "hybrid":
                search.hybrid = "none"
            stages.run(system, f"{label} on the test questions", retrieve, search, ["metrics.json"])

    metrics = {system: out / system / "metrics.json" for system in SYSTEMS}
    runs = [f"{SYSTEMS[system]}={file}" for system, file in metrics.items()]
    print()
    compare.run(CompareSettings(runs=runs, metrics=["mrr@10"], out=str(out / "compared.json")))
    report.run(ReportSettings(folder=str(out), runs=runs, title=folder.resolve().name))

    counts = texts.counts()
    by_kind = counts["test questions by kind"]
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in by_kind.items())
    asked = f"{counts['test questions']:,} held-out questions ({kinds})"
    print(f"\n{counts['passages']:,} passages of {counts['files']:,} files; {asked}.")
    shares = {system: read_json(file)["metrics"]["accuracy@5"] for system, file in metrics.items()}
    print(
        f"The passage is among the first five for {shares['dense']:.0%} of the questions with the trained"
        f" encoder, {shares['bm25']:.0%} with BM25, {shares['hybrid']:.0%} with both."
    )
    if set(by_kind) <= {"heading", "title", "sentence"}:
        print(
            "These questions are made of the texts and share words with them, which flatters BM25;"
            " questions=FILE takes real ones."
        )
    if counts["unread files"]:
        listed = texts.prepared / "unread.jsonl"
        print(f"{counts['unread files']:,} files could not be read: {listed} says why")
    print(f"It took {(time.monotonic() - start) / 60:.1f} minutes.\n")
    print(f'Search by hand:   dpr search {name} "your question"')
    print(f"In a browser:     dpr serve {name} metadata=file")
    print(f"Curves:           {out / 'report.html'}")
