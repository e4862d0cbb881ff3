"""Form in which questions are given to a model: what is put before and after them, and where their vector is
read."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dpr.data.settings import TextSettings
from dpr.data.text import normalize_question, with_suffix


@dataclass(frozen=True, slots=True)
class QuestionForm:
    """Form in which questions of a set are given to the model; DPR's options of a question set.

    ``prefix`` is a token put before the question, with a space between. ``query_prefix`` is a text put
    between them as it is. ``suffix`` is appended unless the question ends with it. ``selector`` is where the
    vector is read: a position, or the first occurrence of a token. ``encoder_type`` is the tower,
    ``question`` or ``ctx``. ``prompt`` is the name of the model's prompt for these questions.
    """

    prefix: str | None = None
    suffix: str | None = None
    selector: int | str | None = None
    encoder_type: str = "question"
    query_prefix: str | None = None
    prompt: str | None = None

    def agreed(self, text: TextSettings) -> QuestionForm:
        """Returns the form for a model that puts prompts before questions, without a prefix that repeats the
        prompt.

        Raises:
            ConfigError: the prefix is another one, or the model has no prompt of that name.
        """
        prefix = text.agreed_prefix(
            self.before_questions, text.question_prompt(self.prompt), key="query_prefix"
        )
        return self if prefix else replace(self, prefix=None, query_prefix=None)

    @property
    def before_questions(self) -> str | None:
        """Returns token and text before each question, as one text, in the order of
        ``DataSetSettings.before_questions`` in training."""
        return (f"{self.prefix} " if self.prefix else "") + (self.query_prefix or "") or None

    def text(self, question: str) -> str:
        """Returns the question as results show it: apostrophes normalised, with suffix, without the text put
        before it."""
        return with_suffix(normalize_question(question), self.suffix)

    def query_text(self, question: str) -> str:
        """Returns the question as retrievers get it: with suffix."""
        return with_suffix(question, self.suffix)
