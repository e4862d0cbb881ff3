"""``dpr quickstart FOLDER``: from a folder of documents to a retriever that is evaluated and can be searched,
with one command."""

from __future__ import annotations

import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from dpr.core.compute_settings import DeviceSettings
from dpr.core.errors import ConfigError
from dpr.core.settings import setting
from dpr.jobs.compare import CompareSettings
from dpr.jobs.prepare_folder import FolderOfDocuments
from dpr.jobs.report import ReportSettings
from dpr.jobs.serve import ServeCommand

if TYPE_CHECKING:
    from dpr.jobs.ladder.adaptation import AdaptationPlan


@dataclass
class QuickstartSettings(DeviceSettings, FolderOfDocuments):
    """Reads a folder of documents, trains an encoder on questions made of them, evaluates it beside BM25 on
    held-out questions, and makes the folder searchable. Rerun the same command to resume, and after the
    documents have changed: only what has changed is made again."""

    EXAMPLES: ClassVar[str] = """\
dpr quickstart docs
dpr quickstart manuals out=runs/manuals types=md,pdf questions=faq.tsv --serve port=9000
dpr quickstart docs encoder=models/e5-small
"""
    out: str | None = setting(None, path="folder")
    """Folder to write; absent = runs/<name of FOLDER>."""
    encoder: str = setting("static", path="input")
    """static, transformer (one small layer, from nothing), or the folder or name of a model to train on."""
    serve: bool = False
    """Open the page to search by hand when all is done (extra serve)."""
    port: int | None = setting(None, least=0, most=65535)
    """Of that page; absent = 8080, or one that is free where that is taken."""

    def check_together(self, prefix: str) -> None:
        super().check_together(prefix)
        folder = Path(str(self.folder))
        self.out = self.out or str(Path("runs") / (folder.resolve().name or "folder"))
        if self.port is not None and not self.serve:
            raise ConfigError(f"port={self.port} is the page's, which --serve opens")
        if self.questions is not None and not Path(self.questions).is_file():
            raise ConfigError(f"questions={self.questions} does not exist")
        if Path(self.out).resolve().is_relative_to(folder.resolve()):
            raise ConfigError(
                f"out={self.out} lies in {folder}, whose files are read; name a folder elsewhere with out="
            )


def run(config: QuickstartSettings) -> int:
    """Runs all stages, prints what came of them, and serves the page where it is asked for; returns the exit
    code."""
    from dpr.jobs.adapt import require_model
    from dpr.jobs.ladder.adaptation import (
        STATIC,
        TRANSFORMER,
        AdaptationPlan,
        require_own,
        stages,
        write_search,
    )
    from dpr.jobs.ladder.climb import climb
    from dpr.jobs.ladder.texts import FolderTexts
    from dpr.jobs.serve import require_packages
    from dpr.jobs.serve import run as serve

    if config.serve:
        require_packages("--serve")
        _port(config.port)
    require_model("encoder", None if config.encoder in (STATIC, TRANSFORMER) else config.encoder)
    out, questions = Path(str(config.out)), None if config.questions is None else Path(config.questions)
    texts = FolderTexts(Path(str(config.folder)), out, config.reading(), questions)
    plan = AdaptationPlan(out, texts, config.encoder, device=config.device)
    start = time.monotonic()
    planned = stages(plan)
    require_own(plan, planned)
    climb(planned[:1], out)
    if is_trained := plan.counts()["train questions"] > 0:
        climb(planned, out)
    write_search(plan, is_trained=is_trained)
    if is_trained:
        show(plan, config, time.monotonic() - start)
    else:
        print(
            f"\n{plan.counts()['passages']:,} passages, too few questions in them to train on: BM25 searches"
            " them."
        )
        print("A larger folder, or questions=FILE with questions of yours, trains an encoder too.\n")
        print(f'Search by hand:   dpr search {shlex.quote(str(out))} "your question"')
    if not config.serve:
        return 0
    if (port := _port(config.port)) != config.port and not port:
        print("The usual port is taken; the page is at another one:", flush=True)
    return serve(ServeCommand(folders=[str(out)], port=port, metadata="file"))


def _port(asked: int | None) -> int:
    """Where the page is to be: as asked, else its usual port, or any that is free where that is taken.

    Raises:
        ConfigError: the port asked for is none, or is taken.
    """
    from dpr.serving.server import listen
    from dpr.serving.settings import ServeSettings

    settings = ServeSettings() if asked is None else ServeSettings(port=asked)
    settings.check()
    try:
        listen(settings).close()
    except ConfigError:
        if asked is not None:
            raise
        return 0
    return settings.port


def show(plan: AdaptationPlan, config: QuickstartSettings, seconds: float) -> None:
    """The table, the page, what could not be read, and what to type next."""
    from dpr.jobs.adapt import show_choice
    from dpr.jobs.compare import run as compare
    from dpr.jobs.ladder.adaptation import SYSTEMS
    from dpr.jobs.report import run as report
    from dpr.storage.durable import read_json

    runs = [f"{label}={plan.metrics(stage)}" for stage, label in SYSTEMS.items()]
    show_choice(plan)
    print()
    compare(CompareSettings(runs=runs, metrics=["mrr@10"], out=str(plan.out / "compared.json")))
    report(ReportSettings(folder=str(plan.out), runs=runs, title=Path(str(config.folder)).resolve().name))
    counts = plan.counts()
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in counts["test questions by kind"].items())
    shares = {stage: read_json(plan.metrics(stage))["metrics"]["accuracy@5"] for stage in SYSTEMS}
    words = (
        "The passage is among the first five for {dense:.0%} of the questions with the trained encoder,"
        " {bm25:.0%} with BM25, "
    )
    words += "{hybrid:.0%} with both."
    print(
        f"\n{counts['passages']:,} passages of {counts['files']:,} files; {counts['test questions']:,}"
        f" held-out questions ({kinds})."
    )
    print(words.format(**shares))
    if set(counts["test questions by kind"]) <= {"heading", "title", "sentence"}:
        print(
            "These questions are made of the texts and share words with them, which flatters BM25;"
            " questions=FILE takes real ones."
        )
    if counts["unread files"]:
        print(
            f"{counts['unread files']:,} files could not be read: {plan.texts.prepared / 'unread.jsonl'}"
            " says why"
        )
    print(f"It took {seconds / 60:.1f} minutes.\n")
    print(f'Search by hand:   dpr search {shlex.quote(str(plan.out))} "your question"')
    print(f"In a browser:     dpr serve {shlex.quote(str(plan.out))} metadata=file")
    print(f"Curves, examples: {plan.out / 'report.html'}")
