"""Settings of commands that make and fetch data: reading of files and folders, and ``dpr download``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

from dpr.core.compute_settings import ForwardSettings
from dpr.core.errors import ConfigError
from dpr.core.settings import Settings, listed, require_set, setting
from dpr.data.settings import BadRowSettings


@dataclass
class ReadSettings(Settings):
    """Facts that a file of training data does not state."""

    corpus: str | None = setting(None, path="input")
    """Passages that rows name by id: TSV, JSON lines or Parquet."""
    queries: str | None = setting(None, path="input")
    """Questions that rows name by id."""
    split: str = ""
    """Split of a folder; empty = train, or the only split."""
    min_grade: float | None = None
    """Minimum judgement, label or score of a positive; 0 or less marks a hard negative. Absent = 1, and only
    whole grades are accepted."""
    question: str | None = None
    """Column of the question, in a table or JSON lines; a.b is key b of column a."""
    positive: str | None = None
    """Column of the positive."""
    negative: str | None = None
    """Column of the negative."""
    title: str | None = None
    """Column of the title."""
    answers: str | None = None
    """Column of the answers."""
    label: str | None = None
    """Column of the label."""

    def columns(self) -> dict[str, str]:
        """Returns column names by role."""
        roles = ("question", "positive", "negative", "title", "answers", "label")
        return {role: name for role in roles if (name := getattr(self, role))}


@dataclass
class PairFileSettings(Settings):
    """Pairs that are cut from a corpus."""

    pairs: Any = None
    """Kinds of pairs to cut from a corpus: mixed, or as in datasets.<name>.pairs."""
    rounds: int = setting(0, unit="pairs", least=0)
    """Training pairs per passage in train.jsonl. A tenth of the documents is held back, for up to 500
    pseudo-questions. 0 = none, since dpr train cuts its own pairs."""


@dataclass
class FolderSettings(Settings):
    """Reading of a folder of documents."""

    words: int = setting(150, unit="words", least=20)
    """Maximum number of words in a passage."""
    overlap: int = setting(30, unit="words", least=0)
    """Words that each passage repeats from the one before it."""
    types: list[str] = field(default_factory=list)
    """Endings of the files to read, e.g. types=md,pdf; none = all supported ones."""
    seed: int = 0
    """Seed that determines the held-out questions."""
    questions: str | None = setting(None, path="input")
    """Your own questions with answers or files: TSV, CSV or JSON lines."""

    def check_together(self, prefix: str) -> None:
        if self.overlap >= self.words:
            raise ConfigError(
                f"{prefix}overlap={self.overlap} is not below {prefix}words={self.words}: a passage cannot"
                " repeat this many words"
            )


@dataclass
class ResourceConfig(Settings):
    """One entry of ``resources``."""

    url: str | None = None
    """Address at which it is published; ``{}`` stands for the number of a part."""
    parts: int = 0
    """Number of parts; 0 = one file."""
    suffix: str | None = None
    """Ending of the file's name; absent = that of the address."""
    sha256: str | None = None
    """Checksum of the published file, if it is known."""
    also: Any = None
    """Addresses of files that belong beside it (a licence)."""
    about: str = ""
    """Description of the resource."""

    def check_together(self, prefix: str) -> None:
        if not self.url:
            raise ConfigError(f"{prefix}url is not set")
        if self.parts < 0 or (self.parts > 0) != ("{}" in self.url) or (self.parts and self.sha256):
            raise ConfigError(
                f"{prefix}parts: parts and a {{}} in url belong together, and sha256 is for a single file"
            )


@dataclass
class DownloadConfig(Settings):
    """Downloads published data."""

    resource: Any = setting(None, operand="[KEY ...]")
    """Keys of ``resources``; the beginning of a key selects all keys below it; absent = list the keys."""
    output_dir: str = setting("downloads", also=("out",), path="folder")
    """Folder to write. The parts of a key become folders in it, where the settings of data sets look for the
    files."""
    resources: dict[str, Any] = field(default_factory=dict)
    """The catalogue: key -> url, parts, suffix, sha256, also, about."""

    def unused(self) -> Iterator[str]:
        if not self.resource:
            yield "output_dir"

    def keys(self) -> list[str]:
        """``resource`` as a list."""
        return list(map(str, listed(self.resource)))


_OF_FILES = ("format", "to", "on_bad_row", "max_bad_rows", "suspects")


@dataclass
class PrepareSettings(PairFileSettings, FolderSettings, ReadSettings, BadRowSettings):
    """Converts training data from another format, which is recognised by the content of the files.

    From a folder of documents (Markdown, text, reStructuredText and CSV, with the extra
    documents also HTML, PDF, Word, PowerPoint, Excel and EPUB) it makes passages, cut at headings and
    paragraphs, and questions from FAQs, headings and first sentences (docs/own_folder.md).

    With pairs=, it cuts pseudo-questions from the passages of a corpus, for comparing settings without real
    questions. With rounds=N, it also writes training pairs for dpr mine and dpr score. Scores on
    pseudo-questions are optimistic and do not measure the quality of a model (docs/without_labels.md).
    """

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

Formats (those marked to= can be written too)
dpr            DPR's JSON or JSON lines: the format of dpr train, and the default [to=dpr]
               {"question": "...", "answers": [], "positive_ctxs": [{"title": "", "text": "..."}], "hard_negative_ctxs": [...]}
beir           folder with corpus.jsonl, queries.jsonl, qrels/<split>.tsv (or a file of judgements, queries= and corpus=) [to=beir]
               qrels: query-id <TAB> corpus-id <TAB> score
tevatron       Tevatron's JSON lines or Parquet, version 1 (passages in the row) and 2 (ids, with corpus=) [to=tevatron]
               {"query_id": "1", "query": "...", "positive_passages": [{"docid": "7", "title": "", "text": "..."}], "negative_passages": []}
flagembedding  FlagEmbedding's JSON lines or Parquet: plain texts; a prompt becomes the beginning of its question [to=flagembedding]
               {"query": "...", "pos": ["..."], "neg": ["..."]}
squad          SQuAD's JSON: paragraphs are passages, articles give the titles
               {"data": [{"title": "...", "paragraphs": [{"context": "...", "qas": [{"question": "...", "answers": [...]}]}]}]}
triples        MS MARCO's triples, tab-separated: texts, or ids with queries= and corpus=
               question <TAB> positive passage <TAB> negative passage
pairs          tab-separated question and passage (or ids with queries= and corpus=), with or without a label or score
               question <TAB> passage <TAB> 1
columns        JSON lines, TSV or CSV with header, Parquet, datasets folder: columns query, positive, negative, label (question=COLUMN ...)
               {"query": "...", "positive": "...", "negative_1": "...", "negative_2": "..."}
"""
    sources: list[str] = setting(list, operand="SOURCE ...", also=("folder",), path="input")
    """Files, folders or patterns; one folder of documents; or with pairs one corpus, in any format that dpr
    embed reads."""
    out: str | None = setting(None, path="output")
    """File to write; a folder for to=beir, for a folder of documents, and with pairs. Compressed if the name
    ends in .gz."""
    format: str = ""
    """Format of the source, if its content does not show it."""
    to: str = "dpr"
    """Format to write."""
    suspects: str | None = setting(None, path="input")
    """List of doubtful labels, from dpr check-data suspects=; these labels are dropped."""
    overwrite: bool = False
    """Replace what is at out."""

    def unused(self) -> Iterator[str]:
        if self.pairs is None:
            yield "rounds"
        if self.pairs is not None or not (len(self.sources) == 1 and Path(self.sources[0]).is_dir()):
            yield from (item.name for item in fields(FolderSettings))
        if self.pairs is not None:
            yield from (item.name for item in fields(ReadSettings) if item.name != "corpus")
            yield from _OF_FILES

    def check_together(self, prefix: str) -> None:
        super().check_together(prefix)
        if self.pairs is not None and not self.sources and self.corpus is not None:
            self.sources = [self.corpus]
        require_set(self, {"sources": "train.json", "out": "train.jsonl"})
        if self.pairs is not None and len(self.sources) > 1:
            raise ConfigError("pairs are cut from one corpus; write the passages into one file")


@dataclass
class CheckDataSettings(ReadSettings, ForwardSettings):
    """Reports counts, lengths, repeats, contradictions and overlap of training data, and five records as the
    model will see them. With suspects=, it also lists labels that look wrong.

    Reads any format that dpr prepare reads. The exit code is 0, or 3 if strict=true and there is a problem.
    """

    EXAMPLES: ClassVar[str] = """\
dpr check-data train.jsonl
dpr check-data train.jsonl dev=dev.jsonl encoder.pretrained_model_cfg=bert-base-uncased encoder.sequence_length=256 --strict
dpr check-data train.jsonl model_file=runs/first suspects=suspects.jsonl
"""
    files: list[str] = setting(list, operand="FILE ...", path="input")
    """Training files, folders or patterns; together one data set."""
    dev: list[str] = setting(list, also=("dev_datasets",), path="input")
    """Validation data, for the overlap; repeat it for more."""
    tokenizer: str = setting("", also=("encoder.pretrained_model_cfg", "model_file", "model"), path="input")
    """Model name, model folder, checkpoint or run folder whose tokenizer measures lengths; empty = lengths in
    words."""
    sequence_length: int | None = setting(None, unit="tokens", least=1, also=("encoder.sequence_length",))
    """Maximum length of questions and passages; absent = that of the model, or 256."""
    strict: bool = False
    """Exit with code 3 if there is a problem."""
    suspects: str | None = setting(None, path="output")
    """File for labels that both BM25 and the bi-encoder model_file contradict: at most 200, the most doubtful
    first. Delete the lines whose labels are correct; dpr prepare ... suspects=FILE then drops the others."""
    overwrite: bool = False
    """Replace an existing file of suspects."""

    def unused(self) -> Iterator[str]:
        if self.suspects is None:
            yield from ("overwrite", *(item.name for item in fields(ForwardSettings)))

    def check_together(self, prefix: str) -> None:
        require_set(self, {"files": "train.jsonl"})
        if self.suspects and not self.tokenizer:
            raise ConfigError("suspects needs a trained bi-encoder: model_file=runs/first")
        if self.suspects and (self.corpus or self.queries or self.min_grade is not None):
            raise ConfigError(
                "suspects cannot be combined with corpus, queries or min_grade; convert the data with dpr"
                " prepare first"
            )


@dataclass
class NewEncoderSettings(Settings):
    """Learns a WordPiece vocabulary and writes an untrained encoder, BERT or static, as a Hugging Face
    folder."""

    EXAMPLES: ClassVar[str] = """\
dpr new-encoder corpus=corpus.tsv questions=train.json out=my_encoder vocab_size=8000 layers=1 hidden=256
dpr train encoder.pretrained_model_cfg=my_encoder ...

dpr new-encoder corpus=corpus.tsv out=my_static vocab_size=30000 layers=0 hidden=1024
dpr train encoder=static encoder.pretrained_model_cfg=my_static ...
"""
    corpus: str | None = setting(None, path="input")
    """Passages: TSV, CSV, JSON lines or Parquet."""
    questions: list[str] = setting(list, takes_words=True, path="input")
    """More text to learn the vocabulary from: files of questions or training data."""
    out: str | None = setting(None, path="output")
    """Folder to write."""
    vocab_size: int = setting(30_000, unit="tokens", least=1)
    """Size of the vocabulary, reserved tokens included."""
    layers: int = setting(1, least=0)
    """Transformer layers; 0 makes a static encoder."""
    hidden: int = setting(256, least=1)
    """Width of the encoder and of its vectors."""
    max_positions: int = setting(512, unit="tokens", least=1)
    """Longest sequence."""
    tokenizer: str | None = setting(None, path="input")
    """Model name or folder whose tokenizer is used instead of a learned vocabulary."""
    cased: bool = False
    """Keep upper case and accents."""
    overwrite: bool = False
    """Replace what is at out."""

    def check_together(self, prefix: str) -> None:
        require_set(self, {"corpus": "corpus.tsv", "out": "my_encoder"})
