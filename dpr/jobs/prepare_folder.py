"""``dpr prepare-folder``: the documents of a folder as passages, training questions, and held-out
questions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from dpr.core.settings import require_set, setting
from dpr.preparation.settings import FolderSettings


@dataclass
class FolderOfDocuments(FolderSettings):
    """A folder, and how it is read."""

    folder: str | None = setting(None, operand="FOLDER", path="input")
    """Folder of documents; folders in it are read too."""
    questions: str | None = setting(None, path="input")
    """Your own questions with answers or files: TSV, CSV or JSON lines."""

    def check_together(self, prefix: str) -> None:
        super().check_together(prefix)
        require_set(self, {"folder": "docs"})


@dataclass
class PrepareFolderSettings(FolderOfDocuments):
    """Reads Markdown, text, reStructuredText, docstrings of Python and CSV, with the extra documents also HTML,
    PDF, Word, PowerPoint, Excel and EPUB, cuts passages at headings and paragraphs, and makes questions of
    FAQs, headings and first sentences. Files that cannot be read are listed in unread.jsonl."""

    EXAMPLES: ClassVar[str] = """\
dpr prepare-folder docs out=data/docs
dpr prepare-folder docs out=data/docs questions=faq.tsv
dpr prepare-folder manuals out=data/manuals types=md,pdf words=100 overlap=0
"""
    out: str | None = setting(None, path="output")
    """Folder to write."""
    overwrite: bool = False
    """Replace what is at out."""
    few: bool = False
    """Where there are too few questions, write the corpus alone instead of ending with 3."""

    def check_together(self, prefix: str) -> None:
        super().check_together(prefix)
        require_set(self, {"out": "data/docs"})


def run(config: PrepareFolderSettings) -> None:
    """Writes the folder and prints how much of everything there is."""
    from dpr.preparation.folder_data import prepare_folder

    questions = None if config.questions is None else Path(config.questions)
    counts = prepare_folder(
        Path(str(config.folder)),
        Path(str(config.out)),
        config.reading(),
        questions=questions,
        overwrite=config.overwrite,
        few=config.few,
    )
    kinds = counts.pop("test questions by kind")
    print(f"{config.out}: " + ", ".join(f"{count:,} {name}" for name, count in counts.items()))
    if kinds:
        print("test questions are " + ", ".join(f"{kind} {count:,}" for kind, count in kinds.items()))
