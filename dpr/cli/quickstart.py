"""``dpr quickstart FOLDER``: from a folder of documents to a retriever that is evaluated and can be searched, with one command."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from dpr.cli import compare, report
from dpr.cli.plain_arguments import PlainParser
from dpr.cli.prepare_folder import add_folder_settings, folder_settings
from dpr.core.errors import ConfigError

if TYPE_CHECKING:
    from dpr.ladder.quickstart import QuickstartPlan

EXAMPLES = """examples:
  dpr quickstart docs
  dpr quickstart manuals out=runs/manuals types=md,pdf questions=faq.tsv --serve port=9000
  dpr quickstart docs encoder=models/e5-small
"""


def main(argv: list[str]) -> int:
    """Reads a folder of documents, trains an encoder on questions made of them, evaluates it beside BM25 on held-out questions, and makes
    the folder searchable. Rerun the same command to resume, and after the documents have changed: only what has changed is made again."""
    parser = PlainParser(prog="dpr quickstart", operands="FOLDER", description=main.__doc__, epilog=EXAMPLES)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="folder of documents; folders in it are read too")
    parser.setting("out", type=Path, metavar="RUN", help="folder to write (default: runs/<name of FOLDER>)")
    encoder = "static, transformer (one small layer, from nothing), or the folder or name of a model to train on (default %(default)s)"
    parser.setting("encoder", default="static", metavar="NAME", help=encoder)
    add_folder_settings(parser)
    parser.setting("device", metavar="NAME", help="cpu, cuda, cuda:N (default: CUDA when there is one)")
    parser.setting("serve", action="store_true", help="open the page to search by hand when all is done (extra serve)")
    parser.setting("port", type=int, metavar="N", help="of that page (default: 8080, or one that is free where that is taken)")
    options = parser.parse(argv)
    out = options.out or Path("runs") / (options.folder.resolve().name or "folder")
    from dpr.core.lazy import require
    from dpr.core.logs import configure_logging
    from dpr.ladder.climb import climb
    from dpr.ladder.quickstart import QuickstartPlan, stages, write_search
    from dpr.preparation.folder_data import FolderSettings

    if options.serve:
        for package in ("uvicorn", "fastapi", "prometheus_client"):
            require(package, extra="serve", purpose="--serve")
        _port(options.port)
    elif options.port is not None:
        raise ConfigError(f"port={options.port} is the page's, which --serve opens")
    if options.questions is not None and not options.questions.is_file():
        raise ConfigError(f"questions={options.questions} does not exist")
    if out.resolve().is_relative_to(options.folder.resolve()):
        raise ConfigError(f"out={out} lies in {options.folder}, whose files are read; name a folder elsewhere with out=")
    configure_logging()
    reading = FolderSettings(**folder_settings(options))
    reading.check()
    plan = QuickstartPlan(options.folder, out, reading, options.questions, options.encoder, options.device)
    start = time.monotonic()
    planned = stages(plan)
    climb(planned[:1], out, overwrite=True)
    if is_trained := plan.counts()["train questions"] > 0:
        climb(planned, out, overwrite=True)
    write_search(plan)
    if is_trained:
        show(plan, time.monotonic() - start)
    else:
        print(f"\n{plan.counts()['passages']:,} passages, too few questions in them to train on: BM25 searches them.")
        print("A larger folder, or questions=FILE with questions of yours, trains an encoder too.\n")
        print(f'Search by hand:   dpr search {out} "your question"')
    if options.serve:
        from dpr.cli.serve import main as serve

        if (port := _port(options.port)) != options.port and not port:
            print("The usual port is taken; the page is at another one:", flush=True)
        return serve([str(out), f"port={port}", "metadata=file"])
    return 0


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


def show(plan: QuickstartPlan, seconds: float) -> None:
    """The table, the page, what could not be read, and what to type next."""
    from dpr.ladder.quickstart import SYSTEMS
    from dpr.storage.durable import read_json

    runs = [f"{label}={plan.metrics(stage)}" for stage, label in SYSTEMS.items()]
    print()
    compare.main([*runs, "--metrics", "mrr@10", "--out", str(plan.out / "compared.json")])
    report.main([str(plan.out), *runs, "--title", plan.folder.resolve().name])
    counts = plan.counts()
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in counts["test questions by kind"].items())
    found = {stage: read_json(plan.metrics(stage))["metrics"]["accuracy@5"] for stage in SYSTEMS}
    words = "The passage is among the first five for {dense:.0%} of the questions with the trained encoder, {bm25:.0%} with BM25, "
    words += "{hybrid:.0%} with both."
    print(f"\n{counts['passages']:,} passages of {counts['files']:,} files; {counts['test questions']:,} held-out questions ({kinds}).")
    print(words.format(**found))
    if set(counts["test questions by kind"]) <= {"heading", "title", "sentence"}:
        print("These questions are made of the texts and share words with them, which flatters BM25; questions=FILE takes real ones.")
    if counts["unread files"]:
        print(f"{counts['unread files']:,} files could not be read: {plan.data / 'unread.jsonl'} says why")
    print(f"It took {seconds / 60:.1f} minutes.\n")
    print(f'Search by hand:   dpr search {plan.out} "your question"')
    print(f"In a browser:     dpr serve {plan.out} metadata=file")
    print(f"Curves, examples: {plan.out / 'report.html'}")
