"""``dpr search``: one question of a finished run, or one after another."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from dpr.core.compute_settings import DeviceSettings
from dpr.core.errors import ConfigError
from dpr.core.settings import setting

if TYPE_CHECKING:
    from dpr.retrieval.hits import Hit
    from dpr.retriever import Retriever

_SNIPPET_LINES = 3


@dataclass
class SearchCommand(DeviceSettings):
    """Asks a run folder a question, or opens a prompt when none is given."""

    EXAMPLES: ClassVar[str] = """\
dpr search runs/quickstart "read a csv file"
dpr search runs/quickstart --mode bm25 --top 3
dpr search --corpus corpus.tsv --mode bm25 "read a csv file"
dpr search --model runs/first --vectors runs/first/vectors_* --corpus corpus.tsv "read a csv file"
"""
    folder: str | None = setting(None, operand="[RUN_FOLDER]", path="input")
    """Folder with a search.json (dpr retrieve search_folder=...)."""
    question: str | None = setting(None, operand="[TEXT]")
    """What to look for; without it questions are read from the terminal."""
    top: int = setting(5, unit="passages", least=1, also=("k",))
    """Passages to show."""
    mode: str | None = setting(None, choices=("dense", "bm25", "hybrid"))
    """How to search; absent = as the folder says."""
    weight: float | None = setting(None, least=0, most=1)
    """Share of the dense side in a hybrid."""
    indexer: str | None = None
    """Kind of the index, or a user-defined module:Class; absent = as stored in the folder."""
    model: str | None = setting(None, path="input")
    """Checkpoint or run folder."""
    vectors: list[str] = setting(list, takes_words=True, path="input")
    """Vectors of the corpus: folders or globs."""
    corpus: list[str] = setting(list, path="input")
    """Passages, DPR's TSV or BEIR's JSON lines; again for more."""
    pooling: str = "cls"
    """module:Class of a model with a user-defined pooling."""

    def check_together(self, prefix: str) -> None:
        from dpr.formats.text_input import matching_paths

        names_files = self.corpus or self.model or self.vectors
        if (
            names_files
            and self.question is None
            and self.folder is not None
            and not Path(self.folder).is_dir()
        ):
            self.folder, self.question = None, self.folder  # then a single word is the question
        if self.question is None and len(self.vectors) > 1 and not matching_paths(last := self.vectors[-1]):
            if len(last.split()) < 2:
                raise ConfigError(
                    f"--vectors {last}: no such files; if it is the question, write it before --vectors, not"
                    " after"
                )
            self.question = self.vectors.pop()


def run(config: SearchCommand) -> None:
    """Answers the question, or all that are typed."""
    from dpr.retriever import Retriever

    names = ("folder", "model", "vectors", "corpus", "mode", "weight", "indexer", "device", "pooling")
    searcher = Retriever.open(**{name: getattr(config, name) for name in names})
    if config.question is not None:
        _answer(searcher, config.question, config.top)
        return
    if is_terminal := sys.stdin.isatty():
        print("Type a question; an empty line or Ctrl-D ends.")
    while True:
        try:
            question = input("> " if is_terminal else "").strip()
        except EOFError:
            return
        if not question:
            return
        _answer(searcher, question, config.top)


def _answer(searcher: Retriever, question: str, top: int) -> None:
    hits = searcher.search(question, top)
    if not hits:
        print("nothing found")
    width = min(shutil.get_terminal_size((100, 24)).columns, 120)
    is_bright = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    for hit in hits:
        print(format_hit(hit, question=question, width=width, is_bright=is_bright))


def format_hit(hit: Hit, *, question: str, width: int, is_bright: bool = False) -> str:
    """Rank, score and title; the part of the text around the question's words, these ``is_bright`` ones;
    where the passage is from and why it was found. Control characters become spaces: a corpus must not drive
    a terminal."""
    from dpr.retrieval.hits import QuestionWords

    words = QuestionWords(question)
    title = _printable(hit.title)
    text = _printable(hit.text)
    name = _printable(hit.id)
    heading = f"{hit.rank:>2}. {hit.score:9.4f}  {title or name}" + (f"  [{name}]" if title else "")
    inner = max(width - 4, 20)
    excerpt = "".join(words.excerpt(text, _SNIPPET_LINES * inner - inner // 4))
    lines = textwrap.wrap(excerpt, inner, max_lines=_SNIPPET_LINES, placeholder=" ...")
    if is_bright:
        lines = [_bright(words.pieces(line)) for line in lines]
    notes = [_printable(fact) for fact in _origin(hit)]
    if len(hit.sides) > 1:
        for side, place in hit.sides.items():
            found = "none" if place is None else f"#{place.rank} ({place.score:.4g})"
            notes.append(f"{'BM25' if side == 'bm25' else side} {found}")
    common = words.in_common(title, text)
    notes.append(f"in common: {_printable(', '.join(common))}" if common else "no word in common")
    lines += textwrap.wrap(" | ".join(notes), inner)
    return "\n".join([heading, *(f"    {line}" for line in lines)])


def _bright(pieces: Sequence[str]) -> str:
    """The pieces, of which every second is a word of the question."""
    return "".join(f"\033[1m{piece}\033[0m" if place % 2 else piece for place, piece in enumerate(pieces))


def _origin(hit: Hit) -> list[str]:
    """Where the passage was taken from: place and heading, where the title does not end with it, and address;
    else the corpus."""
    origin = hit.origin
    if origin is None:
        return [] if hit.file is None else [hit.file.name]
    heading = "" if hit.title.endswith(origin.heading) else origin.heading
    return [fact for fact in (origin.place, heading, origin.url) if fact]


def _printable(text: str) -> str:
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
