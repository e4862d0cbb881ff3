"""``dpr prepare SOURCE ... out=FILE``: training data from other formats."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from dpr.core.errors import ConfigError
from dpr.core.settings import require_set, setting
from dpr.preparation.settings import ReadSettings

if TYPE_CHECKING:
    from dpr.formats.training_files.rows import ReadOptions


@dataclass
class PrepareSettings(ReadSettings):
    """Makes training data from one or more files (or folders) of another format. The content tells the
    format."""

    EXAMPLES: ClassVar[str] = """\
dpr prepare squad/train-v1.1.json out=train.jsonl
dpr prepare scifact out=train.jsonl                     # a folder with corpus.jsonl, queries.jsonl and qrels/
dpr prepare qidpidtriples.tsv queries=queries.train.tsv corpus=collection.tsv format=triples out=train.jsonl
dpr prepare faq.jsonl question=title positive=body out=train.jsonl
dpr prepare train.jsonl to=tevatron out=tevatron.jsonl
"""
    sources: list[str] = setting(list, operand="SOURCE ...", path="input")
    """Files, folders or patterns."""
    out: str | None = setting(None, path="output")
    """File to write (a folder for to=beir); .gz is compressed."""
    format: str = ""
    """Format of the source, where its content does not tell."""
    to: str = "dpr"
    """Format to write."""
    on_bad_row: str = setting("fail", choices=("fail", "skip"))
    """skip lists bad rows in <out>.rejected.jsonl."""
    max_bad_rows: int | None = setting(None, unit="rows", least=0)
    """How many may be skipped; absent = 100, or 0.1% of all if that is more."""
    suspects: str | None = setting(None, path="input")
    """List of labels that look wrong, by dpr check-data suspects=: these are dropped."""
    relabel: bool = False
    """In place of a positive on that list take the passage that was found instead; a negative on it becomes a
    positive."""
    overwrite: bool = False
    """Replace what is at out."""

    def unused(self) -> Iterator[str]:
        if self.suspects is None:
            yield "relabel"

    def check_together(self, prefix: str) -> None:
        require_set(self, {"sources": "train.json", "out": "train.jsonl"})
        if self.sources[0] == "docstrings" and not Path("docstrings").exists():
            raise ConfigError(
                "the corpus of docstrings is an example: python -m examples.docstring_corpus --out FOLDER, in"
                " the repository"
            )

    @staticmethod
    def more_help() -> str:
        """Every format with an example row."""
        from dpr.formats.training_files.registry import FORMATS

        rows = [
            f"  {name:<14}"
            f" {entry.about}{'' if entry.write is None else f' [to={name}]'}\n{' ' * 17}{entry.example}\n"
            for name, entry in FORMATS.items()
        ]
        return "Formats (those marked to= can be written too)\n" + "".join(rows)


def run(config: PrepareSettings) -> None:
    """Converts the files."""
    from dpr.formats.text_input import expand_files
    from dpr.preparation.conversion import Corrections, convert

    counts = convert(
        expand_files(config.sources),
        Path(str(config.out)),
        read_options(config),
        format_name=config.format,
        to=config.to,
        skip_bad_rows=config.on_bad_row == "skip",
        max_bad_rows=config.max_bad_rows,
        corrections=(
            None if config.suspects is None else Corrections(Path(config.suspects), relabel=config.relabel)
        ),
        overwrite=config.overwrite,
    )
    print(f"{config.out}: {counts or 'there already, made of the same'}")


def read_options(config: ReadSettings) -> ReadOptions:
    """The settings as readers take them."""
    from dpr.formats.training_files.rows import ReadOptions

    corpus, queries = (None if name is None else Path(name) for name in (config.corpus, config.queries))
    return ReadOptions(corpus, queries, config.split, config.min_grade, config.columns())
