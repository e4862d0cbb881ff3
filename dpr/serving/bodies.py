"""Bodies of requests: their fields, and what is wrong with one in a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator


def _encodable(text: str) -> str:
    text.encode()  # halves of surrogate pairs, which JSON can write, are no text
    return text


Text = Annotated[str, AfterValidator(_encodable)]
Value = Text | bool | int | float


class Filter(BaseModel):
    """Which passages are searched at all."""

    model_config = ConfigDict(extra="forbid", strict=True)

    ids: list[Text] | None = Field(None, min_length=1, max_length=10_000, description="Only these passages.")
    metadata: dict[Text, Value | list[Value]] | None = Field(
        None, min_length=1, description="Only passages whose fields have these values, or one of a list of them."
    )

    @model_validator(mode="after")
    def says_something(self) -> Filter:
        """Nothing to filter by would let every passage through."""
        if self.ids is None and self.metadata is None:
            raise ValueError("names neither ids nor metadata")
        return self


class SearchBody(BaseModel):
    """Questions, and how to search."""

    model_config = ConfigDict(extra="forbid", strict=True)

    queries: list[Text] = Field(min_length=1)
    index: Text | None = Field(None, description="A name of /info; absent = the first.")
    k: int = Field(10, ge=1, description="Passages per question.")
    filter: Filter | None = None
    texts: bool = Field(True, description="Give title and text of each passage.")
    explain: bool = Field(False, description="Give the part of the text around the question's words, and these words.")


class RetrieveBody(BaseModel):
    """What trainers of search agents send."""

    model_config = ConfigDict(strict=True)

    queries: list[Text] = Field(min_length=1)
    topk: int | None = Field(None, ge=1)
    return_scores: bool = False
    index: Text | None = None


def sentence(errors: Sequence[Mapping[str, Any]]) -> str:
    """The first thing that is wrong with a request."""
    error = errors[0]
    where = ".".join(str(part) for part in error["loc"][1:])
    if error["type"] == "json_invalid":
        return f"the body is not JSON: {error.get('ctx', {}).get('error', error['msg'])}"
    if error["type"] == "extra_forbidden":
        return f"{where} is not known"
    if error["type"] == "missing":
        return f"{where or 'the body'} is missing"
    if "surrogates not allowed" in error["msg"]:
        return f"{where} holds half of a surrogate pair, which is no text"
    return f"{where or 'the body'}: {error['msg'][:1].lower()}{error['msg'][1:]}"
