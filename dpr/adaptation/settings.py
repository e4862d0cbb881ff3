"""Settings of ``dpr adapt`` and ``dpr quickstart``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from dpr.core.compute_settings import DeviceSettings
from dpr.core.errors import ConfigError
from dpr.core.settings import require_set, setting
from dpr.preparation.settings import FolderSettings


@dataclass
class AdaptSettings(DeviceSettings):
    """Makes a corpus searchable with the hybrid of BM25 and an encoder adapted to it. Rerun the same command to
    resume, and after an input has changed.

    Without labels, the encoder is trained on pairs cut from the corpus, and the hybrid's weight is chosen on
    pseudo-questions of documents held back from training. With labelled questions (train=FILE), a given model
    is fine-tuned on them. Questions held out choose whether the result is used, and others test it.
    """

    EXAMPLES: ClassVar[str] = """\
dpr adapt corpus.jsonl
dpr adapt corpus.tsv out=runs/mine
dpr adapt corpus.jsonl model_file=models/e5-small max_pairs=5000
dpr adapt corpus.jsonl model_file=models/e5-small static=questions
dpr adapt corpus.jsonl model_file=models/e5-small train=pairs.tsv
"""
    corpus: str | None = setting(None, operand="CORPUS", path="input")
    """Passages, in any format that dpr embed reads."""
    out: str | None = setting(None, path="folder")
    """Folder to write; absent = runs/<name of CORPUS>."""
    model_file: str | None = setting(None, also=("model",), path="input")
    """Folder or name of a model. Without train, one that was trained for retrieval gets a linear layer, fitted
    to the corpus; a backbone alone is trained on pairs. Absent = a static encoder, trained from scratch."""
    train: str | None = setting(None, path="input")
    """Labelled questions to fine-tune model_file on, in any format that dpr prepare reads; the texts of their
    positives are compared with those of CORPUS. Some are held out, passage by passage, for dev and test."""
    dev: str | None = setting(None, path="input")
    """Labelled questions for the choice of the model and the hybrid's weight; absent = a quarter of those of
    train."""
    test: str | None = setting(None, path="input")
    """Labelled questions for the test; absent = a fifth of those of train, if there are 200."""
    static: str | None = setting(None, choices=("questions", "both"))
    """Distil model_file into a static embedding table, which encodes a question in microseconds. questions:
    passages keep the model; both: passages use the table, too."""
    pairs: Any = "mixed"
    """Kinds of pairs, as in datasets.<name>.pairs (docs/without_labels.md)."""
    max_pairs: int = setting(0, unit="pairs", least=0)
    """Number of training pairs; 0 = 16 per passage, 8,192 to 131,072 in total; with model_file, 4 per
    passage, 1,024 to 20,000 in total. For a linear layer or a static encoder: number of pseudo-questions; 0 =
    3,000 or 10,000."""
    seed: int = 0
    """Seed of pairs, order and initial weights."""
    processes: int = setting(1, unit="processes", least=1)
    """Processes that train and embed together, each on its GPU: 1, 2, 4, 8 or 16. The result is the same
    except for rounding."""

    def label_files(self) -> dict[str, str]:
        """Returns the given files of labelled questions by split."""
        given = {"train": self.train, "dev": self.dev, "test": self.test}
        return {split: file for split, file in given.items() if file is not None}

    def check_together(self, prefix: str) -> None:
        require_set(self, {"corpus": "corpus.jsonl"})
        if 16 % self.processes:
            raise ConfigError(
                f"processes={self.processes}, expected 1, 2, 4, 8 or 16, which divide every batch"
            )
        corpus = Path(str(self.corpus))
        self.out = self.out or str(Path("runs") / corpus.name.partition(".")[0])
        if corpus.is_dir():
            raise ConfigError(
                f"{corpus} is a folder; for documents, use dpr quickstart {corpus}; for BEIR's layout, name its"
                " corpus file"
            )
        if not corpus.exists():
            raise ConfigError(f"corpus={corpus} does not exist")
        for name, given in self.label_files().items():
            if not Path(given).exists():
                raise ConfigError(f"{name}={given} does not exist")
            if self.train is None or self.model_file is None:
                missing = "train" if self.train is None else "model_file"
                raise ConfigError(
                    f"{name}={given} needs {missing}: labelled questions fine-tune a model that is given,"
                    " model_file=FOLDER train=FILE"
                )
        if self.static is not None and self.model_file is None:
            raise ConfigError(
                f"static={self.static} needs model_file, the model to distil; without both, a static encoder"
                " is trained on the corpus alone"
            )


@dataclass
class QuickstartSettings(DeviceSettings, FolderSettings):
    """Reads a folder of documents, generates questions from them, trains an encoder on these, compares it
    with BM25 on held-out questions, and makes the folder searchable. Rerun the same command to resume, and
    after the documents have changed."""

    EXAMPLES: ClassVar[str] = """\
dpr quickstart docs
dpr quickstart manuals out=runs/manuals types=md,pdf questions=faq.tsv
dpr quickstart docs encoder=models/e5-small
"""
    folder: str | None = setting(None, operand="FOLDER", path="input")
    """Folder of documents, including its subfolders."""
    out: str | None = setting(None, path="folder")
    """Folder to write; absent = runs/<name of FOLDER>."""
    encoder: str = setting("static", path="input")
    """static (word vectors, trained from scratch), or the folder or name of a model to train on."""

    def check_together(self, prefix: str) -> None:
        super().check_together(prefix)
        require_set(self, {"folder": "docs"})
        folder = Path(str(self.folder))
        self.out = self.out or str(Path("runs") / (folder.resolve().name or "folder"))
        if self.questions is not None and not Path(self.questions).is_file():
            raise ConfigError(f"questions={self.questions} does not exist")
        if Path(self.out).resolve().is_relative_to(folder.resolve()):
            raise ConfigError(
                f"out={self.out} is inside {folder}, whose files are read; set out= to a folder elsewhere"
            )
