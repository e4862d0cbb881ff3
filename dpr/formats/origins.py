"""Where a passage was taken from, in a record of a corpus: ``file``, ``heading``, ``line`` and ``url``, or
these in BEIR's ``metadata``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from dpr.core.records import Origin
from dpr.formats.text_input import has_lone_surrogate


def field_of(record: Mapping[str, Any], name: str) -> Any:
    """A field of a record, or of the object ``metadata`` in it; None where neither has it."""
    value, inner = record.get(name), record.get("metadata")
    return inner.get(name) if value is None and isinstance(inner, Mapping) else value


def origin_of(record: Mapping[str, Any]) -> Origin | None:
    """What a record says; None where it names neither file nor address. What is of another type counts as
    absent."""
    if not record.get("metadata") and "file" not in record and "url" not in record:
        return None  # soon said of the usual record
    file, url = _text(record, "file"), _text(record, "url")
    url = url if _is_web_address(url) else ""
    if not file and not url:
        return None
    line = field_of(record, "line")
    return Origin(
        file, _text(record, "heading"), line if type(line) is int and 0 <= line < 2**63 else None, url
    )


def origin_record(origin: Origin) -> dict[str, Any]:
    """The object ``metadata`` that ``origin_of`` reads back."""
    place = {"file": origin.file, "heading": origin.heading, "line": origin.line} if origin.file else {}
    return place | ({"url": origin.url} if origin.url else {})


def _text(record: Mapping[str, Any], name: str) -> str:
    value = field_of(record, name)
    return value if isinstance(value, str) and not has_lone_surrogate(value) else ""


def _is_web_address(text: str) -> bool:
    if not text.lower().startswith(("http://", "https://")) or not text.isprintable() or " " in text:
        return False
    try:
        return bool(urlsplit(text).hostname)
    except ValueError:
        return False
