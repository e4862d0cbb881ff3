"""``dpr quickstart FOLDER``: from a folder of documents to a retriever that is evaluated and can be searched,
with one command."""

from __future__ import annotations

import json
import shlex
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

from dpr.core.compute_settings import DeviceSettings
from dpr.core.errors import ConfigError
from dpr.core.settings import require_set, setting
from dpr.jobs.adapt import AdaptSettings, Texts, adapt, require_model, search_of, write_search
from dpr.jobs.compare import CompareSettings
from dpr.jobs.prepare import PrepareSettings
from dpr.jobs.report import ReportSettings
from dpr.preparation.settings import FolderSettings

SYSTEMS = {"bm25": "BM25", "dense": "trained", "hybrid": "hybrid"}
"""The stages that evaluate on test questions, and their names in tables."""


@dataclass
class QuickstartSettings(DeviceSettings, FolderSettings):
    """Reads a folder of documents, trains an encoder on questions made of them, evaluates it beside BM25 on
    held-out questions, and makes the folder searchable. Rerun the same command to resume, and after the
    documents have changed: only what has changed is made again."""

    EXAMPLES: ClassVar[str] = """\
dpr quickstart docs
dpr quickstart manuals out=runs/manuals types=md,pdf questions=faq.tsv
dpr quickstart docs encoder=models/e5-small
"""
    folder: str | None = setting(None, operand="FOLDER", path="input")
    """Folder of documents; folders in it are read too."""
    out: str | None = setting(None, path="folder")
    """Folder to write; absent = runs/<name of FOLDER>."""
    encoder: str = setting("static", path="input")
    """static (word vectors, from nothing), or the folder or name of a model to train on."""

    def check_together(self, prefix: str) -> None:
        super().check_together(prefix)
        require_set(self, {"folder": "docs"})
        folder = Path(str(self.folder))
        self.out = self.out or str(Path("runs") / (folder.resolve().name or "folder"))
        if self.questions is not None and not Path(self.questions).is_file():
            raise ConfigError(f"questions={self.questions} does not exist")
        if Path(self.out).resolve().is_relative_to(folder.resolve()):
            raise ConfigError(
                f"out={self.out} lies in {folder}, whose files are read; name a folder elsewhere with out="
            )


def run(config: QuickstartSettings) -> None:
    """Runs all stages and prints what came of them."""
    from dpr.core.hashes import text_sha256
    from dpr.jobs import prepare, retrieve
    from dpr.jobs.stages import stages_in
    from dpr.preparation.folder_files import find_documents, name_in

    model_file = None if config.encoder == "static" else config.encoder
    require_model("encoder", model_file)
    start = time.monotonic()
    folder = Path(str(config.folder))
    out = Path(str(config.out))
    documents = find_documents(folder, config.types)
    prepared = out / "data" / "texts"
    train_sets = {
        "corpus": {"file": str(prepared / "evaluation_corpus.jsonl"), "pairs": "mixed"},
        "questions": {"file": str(prepared / "train.jsonl")},
    }
    vocabulary = [str(prepared / "train.jsonl")]
    texts = Texts("data", prepared, prepared / "corpus.jsonl", train_sets, vocabulary)

    made_of = asdict(config.part(FolderSettings))
    made_of["names"] = text_sha256(json.dumps([name_in(folder, path) for path in documents]))
    files = {"folder": [path for path in documents if path.is_file()]}
    del made_of["questions"]  # their content counts, not their name
    if config.questions is not None:
        files["questions"] = [Path(config.questions)]
    with stages_in(out, first=texts.stage) as stages:
        stages.run(
            texts.stage,
            f"{len(documents)} files: passages, training questions, held-out questions",
            prepare,
            PrepareSettings(
                sources=[str(folder)],
                out=str(prepared),
                words=config.words,
                overlap=config.overlap,
                types=config.types,
                seed=config.seed,
                questions=config.questions,
                few=True,
            ),
            outputs=[prepared.name],
            settings=made_of,
            files=files,
        )
        if not texts.counts()["train questions"]:
            write_search(out, texts.corpus, None)
            passages = texts.counts()["passages"]
            print(f"\n{passages:,} passages, too few questions in them to train on: BM25 searches them.")
            print("A larger folder, or questions=FILE with questions of yours, trains an encoder too.\n")
            print(f'Search by hand:   dpr search {shlex.quote(str(out))} "your question"')
            return
        trained = AdaptSettings(out=str(out), model_file=model_file, device=config.device)
        weight = adapt(stages, trained, texts)
        for name in SYSTEMS:
            search = search_of(trained, texts, name, "test")
            search.hybrid_weight = weight
            if name == "bm25":
                search.indexer.kind = "bm25"
            if name != "hybrid":
                search.hybrid = "none"
            stages.run(
                name,
                f"{SYSTEMS[name]} on the test questions",
                retrieve,
                search,
                outputs=["metrics.json"],
                after=[texts.stage, "evaluation", "weight"],
            )
    show(config, texts, time.monotonic() - start)


def show(config: QuickstartSettings, texts: Texts, seconds: float) -> None:
    """Prints the table, what could not be read, and what to type next; writes the page."""
    from dpr.jobs.compare import run as compare
    from dpr.jobs.report import run as report
    from dpr.storage.durable import read_json

    out = Path(str(config.out))
    metrics = {name: out / name / "metrics.json" for name in SYSTEMS}
    runs = [f"{SYSTEMS[name]}={file}" for name, file in metrics.items()]
    print()
    compare(CompareSettings(runs=runs, metrics=["mrr@10"], out=str(out / "compared.json")))
    report(ReportSettings(folder=str(out), runs=runs, title=Path(str(config.folder)).resolve().name))

    counts = texts.counts()
    by_kind = counts["test questions by kind"]
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in by_kind.items())
    asked = f"{counts['test questions']:,} held-out questions ({kinds})"
    print(f"\n{counts['passages']:,} passages of {counts['files']:,} files; {asked}.")
    shares = {name: read_json(file)["metrics"]["accuracy@5"] for name, file in metrics.items()}
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
    print(f"It took {seconds / 60:.1f} minutes.\n")
    print(f'Search by hand:   dpr search {shlex.quote(str(out))} "your question"')
    print(f"In a browser:     dpr serve {shlex.quote(str(out))} metadata=file")
    print(f"Curves: {out / 'report.html'}")
