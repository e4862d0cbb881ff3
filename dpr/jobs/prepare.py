"""``dpr prepare SOURCE ... out=OUT``: training data from other formats, from a folder of documents, or cut
from a corpus."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from dpr.core.errors import ConfigError
from dpr.core.settings import require_set, setting
from dpr.preparation.settings import FolderSettings, PairFileSettings, ReadSettings

if TYPE_CHECKING:
    from dpr.formats.training_files.rows import ReadOptions

_OF_FILES = ("format", "to", "on_bad_row", "max_bad_rows", "suspects", "relabel")


@dataclass
class PrepareSettings(PairFileSettings, FolderSettings, ReadSettings):
    """Makes training data from one or more files (or folders) of another format. The content tells the
    format.

    From a folder of documents (Markdown, text, reStructuredText and CSV, with the extra documents also HTML,
    PDF, Word, PowerPoint, Excel and EPUB) it makes passages cut at headings and
    paragraphs, and questions of FAQs, headings and first sentences (docs/own_folder.md).

    With pairs=, it cuts pseudo-questions from the passages of a corpus, and writes the corpus without them, to
    compare settings where there are no questions; with rounds=N training pairs too, for dpr mine and dpr
    score. Scores on pseudo-questions are optimistic, and say nothing of the quality of a model
    (docs/without_labels.md)."""

    EXAMPLES: ClassVar[str] = """\
dpr prepare squad/train-v1.1.json out=train.jsonl
dpr prepare scifact out=train.jsonl                     # a folder with corpus.jsonl, queries.jsonl and qrels/
dpr prepare qidpidtriples.tsv queries=queries.train.tsv corpus=collection.tsv format=triples out=train.jsonl
dpr prepare faq.jsonl question=title positive=body out=train.jsonl
dpr prepare train.jsonl to=tevatron out=tevatron.jsonl
dpr prepare docs out=data/docs questions=faq.tsv        # a folder of documents
dpr prepare manuals out=data/manuals types=md,pdf words=100 overlap=0
dpr prepare corpus.jsonl pairs=mixed out=data/pseudo
dpr prepare corpus.jsonl pairs=[crops,title] rounds=4 out=data/pseudo
"""
    sources: list[str] = setting(list, operand="SOURCE ...", also=("folder",), path="input")
    """Files, folders or patterns; one folder of documents; or with pairs one corpus, in any format that dpr
    embed reads."""
    out: str | None = setting(None, path="output")
    """File to write; a folder for to=beir, of documents, and with pairs. A name in .gz is compressed."""
    format: str = ""
    """Format of the source, where its content does not tell."""
    to: str = "dpr"
    """Format to write."""
    on_bad_row: str = setting("fail", choices=("fail", "skip"))
    """skip lists bad rows in <out>.rejected.jsonl."""
    max_bad_rows: int = setting(100, unit="rows", least=0)
    """How many may be skipped; absent = 100, or 0.1% of all if that is more."""
    suspects: str | None = setting(None, path="input")
    """List of labels that look wrong, by dpr check-data suspects=: these are dropped."""
    relabel: bool = False
    """In place of a positive on that list take the passage that was found instead; a negative on it becomes a
    positive."""
    few: bool = False
    """Where a folder of documents holds too few questions, write its corpus alone instead of ending with 3."""
    overwrite: bool = False
    """Replace what is at out."""

    def unused(self) -> Iterator[str]:
        if self.pairs is None:
            yield from ("held_back", "rounds")
        if self.pairs is not None or not (len(self.sources) == 1 and Path(self.sources[0]).is_dir()):
            yield from ("few", *(item.name for item in fields(FolderSettings)))
        if self.pairs is not None:
            yield from (item.name for item in fields(ReadSettings) if item.name != "corpus")
            yield from _OF_FILES
        elif self.suspects is None:
            yield "relabel"

    def check_together(self, prefix: str) -> None:
        super().check_together(prefix)
        if self.pairs is not None and not self.sources and self.corpus is not None:
            self.sources = [self.corpus]
        require_set(self, {"sources": "train.json", "out": "train.jsonl"})
        if self.pairs is not None and len(self.sources) > 1:
            raise ConfigError("pairs are cut from one corpus; write the passages into one file")
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
    """Makes what the settings ask for, and prints how much of everything there is."""
    from dpr.formats.text_input import expand_files
    from dpr.preparation.conversion import Corrections, convert

    out = Path(str(config.out))
    counts: Any
    if config.pairs is not None:
        from dpr.preparation.pseudo_questions import prepare_pairs

        how = config.part(PairFileSettings)
        counts = prepare_pairs(Path(config.sources[0]), out, how, overwrite=config.overwrite)
        print(f"{out}: " + ", ".join(f"{count:,} {name}" for name, count in counts.items()))
    elif _is_of_documents(config):
        from dpr.preparation.folder_data import prepare_folder

        reading = config.part(FolderSettings)
        counts = prepare_folder(
            Path(config.sources[0]), out, reading, overwrite=config.overwrite, few=config.few
        )
        kinds = counts.pop("test questions by kind")
        print(f"{out}: " + ", ".join(f"{count:,} {name}" for name, count in counts.items()))
        if kinds:
            print("test questions are " + ", ".join(f"{kind} {count:,}" for kind, count in kinds.items()))
    else:
        suspects = None if config.suspects is None else Path(config.suspects)
        counts = convert(
            expand_files(config.sources),
            out,
            read_options(config),
            format_name=config.format,
            to=config.to,
            skip_bad_rows=config.on_bad_row == "skip",
            max_bad_rows=config.max_bad_rows,
            corrections=None if suspects is None else Corrections(suspects, relabel=config.relabel),
            overwrite=config.overwrite,
        )
        print(f"{out}: {counts or 'there already, made of the same'}")


def _is_of_documents(config: PrepareSettings) -> bool:
    """Whether there is one source, a folder that holds no training data."""
    from dpr.formats.training_files.registry import look_at

    source = Path(config.sources[0])
    if len(config.sources) > 1 or not source.is_dir() or config.format or config.columns():
        return False
    seen = look_at(source)
    return seen.kind == "folder" and not seen.is_training_data


def read_options(config: ReadSettings) -> ReadOptions:
    """The settings as readers take them."""
    from dpr.formats.training_files.rows import ReadOptions

    corpus, queries = (None if name is None else Path(name) for name in (config.corpus, config.queries))
    return ReadOptions(corpus, queries, config.split, config.min_grade, config.columns())
