"""Settings of a validation by retrieval: an entry ``{kind: retrieval, ...}`` of ``train.validation``, in
place of a user-defined class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpr.core import retired
from dpr.core.errors import ConfigError
from dpr.core.settings import CONTENT, IDENTITY, NO_EFFECT, Settings, setting

KIND = "retrieval"


@dataclass
class RetrievalValidationSettings(Settings):
    """Questions that are searched in a whole corpus with the present model."""

    corpus: str = setting("", on_resume=CONTENT, path="input")
    """Passages: TSV (id, text, title), BEIR's corpus.jsonl or Parquet."""
    questions: str = setting("", on_resume=CONTENT, path="input")
    """Questions: TSV (question, answers), JSON lines, or BEIR's queries.jsonl."""
    qrels: str | None = setting(None, on_resume=CONTENT, path="input")
    """Relevance judgements, BEIR's TSV or TREC's four columns."""
    match: str = setting("auto", choices=("auto", "string", "regex", "qrels"), on_resume=IDENTITY)
    """string or regex: an answer in the text, also beside qrels; qrels: judgements alone; auto = qrels where
    given, else string."""
    name: str | None = setting(None, on_resume=NO_EFFECT)
    """In the names of metrics, eval/<name>/...; absent = that of the file of questions."""
    prompt: str | None = setting(None, on_resume=IDENTITY)
    """Name of the model's prompt for these questions; absent = its query prompt."""
    query_prefix: str | None = setting(None, on_resume=IDENTITY)
    """Put before every question as it is, as in training; the model's own prompts need not be named."""
    passage_prefix: str = setting("", on_resume=IDENTITY)
    """The same before every passage."""

    def check_together(self, prefix: str) -> None:
        for key in ("corpus", "questions"):
            if not getattr(self, key):
                raise ConfigError(f"{prefix}{key} is not set; name a file")
        for key in ("corpus", "questions", "qrels"):
            file = getattr(self, key)
            if file and not Path(file).is_file():
                raise ConfigError(f"{prefix}{key}={file} is not a file")
        if self.match == "qrels" and not self.qrels:
            raise ConfigError(f"{prefix}match=qrels needs {prefix}qrels=<file>")

    def set_name(self) -> str:
        """The name in metrics."""
        return self.name or Path(self.questions).name.partition(".")[0]


def is_built_in(entry: Any) -> bool:
    """Whether an entry names a kind."""
    return isinstance(entry, Mapping) and "kind" in entry


def read_entry(entry: Mapping[str, Any], number: int) -> RetrievalValidationSettings:
    """The settings of such an entry; ``number`` counts the entries from 0.

    Raises:
        ConfigError: another kind, an unknown key, a wrong value, or a file that is not there.
    """
    key = f"train.validation[{number}]"
    if entry["kind"] != KIND:
        raise ConfigError(
            f"{key}.kind={entry['kind']} is not known; choose {KIND}, or a class of yours with use:"
            " module:Class"
        )
    for name in entry:
        if sentence := retired.SETTINGS.get(f"train.validation.{name}"):
            raise ConfigError(f"{key}.{name} is gone: {sentence}")
    return RetrievalValidationSettings.from_mapping(
        {name: value for name, value in entry.items() if name != "kind"}, f"{key}."
    )
