"""``dpr search``: searches a finished run with one question, or with one after another."""

from __future__ import annotations

import shutil
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from dpr.core.compute_settings import DeviceSettings
from dpr.core.settings import setting

if TYPE_CHECKING:
    from dpr.retrieval.hits import Hit

_SNIPPET_LINES = 3


@dataclass
class SearchCommand(DeviceSettings):
    """Searches a run folder with a question, or opens a prompt if none is given."""

    EXAMPLES: ClassVar[str] = """\
dpr search runs/quickstart "read a csv file"
dpr search runs/quickstart --mode bm25 --top 3
dpr search --corpus corpus.tsv --mode bm25 "read a csv file"
dpr search --model runs/first --vectors runs/first/vectors_* --corpus corpus.tsv "read a csv file"
"""
    folder: str | None = setting(None, operand="[RUN_FOLDER]", path="input")
    """Folder with a search.json (dpr retrieve search_folder=...)."""
    question: str | None = setting(None, operand="[TEXT]")
    """Text to search for; absent = questions are read from the terminal."""
    top: int = setting(5, unit="passages", least=1, also=("k",))
    """Passages to show."""
    mode: str | None = setting(None, choices=("dense", "bm25", "hybrid"))
    """Search mode; absent = the folder's."""
    model: str | None = setting(None, also=("model_file",), path="input")
    """Checkpoint or run folder."""
    vectors: list[str] = setting(list, takes_words=True, path="input")
    """Vectors of the corpus: folders or globs."""
    corpus: list[str] = setting(list, path="input")
    """Passages: TSV, CSV, JSON lines or Parquet; again for more."""

    def check_together(self, prefix: str) -> None:
        from dpr.core.paths import matching_paths

        names_files = self.corpus or self.model or self.vectors
        if names_files and self.question is None and self.folder and not Path(self.folder).is_dir():
            self.folder, self.question = None, self.folder  # then a single word is the question
        if self.question is None and len(self.vectors) > 1 and not matching_paths(self.vectors[-1]):
            self.question = self.vectors.pop()


def run(config: SearchCommand) -> None:
    """Answers the question, or every question that is typed."""
    from dpr.retrieval.hits import NO_ANSWER
    from dpr.retrieval.retriever import Retriever

    searcher = Retriever.open(
        config.folder,
        model=config.model,
        vectors=config.vectors,
        corpus=config.corpus,
        mode=config.mode,
        device=config.device,
    )
    is_terminal = sys.stdin.isatty()
    if config.question is None and is_terminal:
        print("Type a question; an empty line or Ctrl-D ends.")
    width = min(shutil.get_terminal_size((100, 24)).columns, 120)
    while True:
        question = config.question
        if question is None:
            try:
                question = input("> " if is_terminal else "").strip()
            except EOFError:
                return
            if not question:
                return
        hits = searcher.search(question, config.top)
        if hits and hits.seems_unanswered:
            print(NO_ANSWER)
        for hit in hits:
            print(format_hit(hit, question=question, width=width))
        if not hits:
            print("nothing found")
        if config.question is not None:
            return


def format_hit(hit: Hit, *, question: str, width: int) -> str:
    """Formats rank, score and title; the part of the text around the question's words; the source of the
    passage; and why it was found. Control characters become spaces: a corpus must not drive a terminal."""
    from dpr.retrieval.hits import QuestionWords

    words = QuestionWords(question)
    title = _printable(hit.title)
    text = _printable(hit.text)
    name = _printable(hit.id)
    heading = f"{hit.rank:>2}. {hit.score:9.4f}  {title or name}" + (f"  [{name}]" if title else "")
    inner = max(width - 4, 20)
    excerpt = "".join(words.excerpt(text, _SNIPPET_LINES * inner - inner // 4))
    lines = textwrap.wrap(excerpt, inner, max_lines=_SNIPPET_LINES, placeholder=" ...")

    notes = []
    if hit.origin is not None:
        # the heading, unless the title ends with it
        ends = hit.title.endswith(hit.origin.heading)
        notes = [hit.origin.place, "" if ends else hit.origin.heading, hit.origin.url]
    elif hit.file is not None:
        notes = [hit.file.name]
    if len(hit.sides) > 1:
        for side, place in hit.sides.items():
            found = "none" if place is None else f"#{place.rank} ({place.score:.4g})"
            notes.append(f"{'BM25' if side == 'bm25' else side} {found}")
    common = words.in_common(title, text)
    notes.append(f"in common: {', '.join(common)}" if common else "no word in common")
    lines += textwrap.wrap(" | ".join(_printable(note) for note in notes if note), inner)
    return "\n".join([heading, *(f"    {line}" for line in lines)])


def _printable(text: str) -> str:
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
