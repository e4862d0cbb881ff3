"""Elements of HTML and SVG. Whatever is not markup already is escaped, so that no text of a data file becomes an element."""

from __future__ import annotations

import re

# What XML cannot carry at all, and the controls that turn the reading direction of everything after them.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u202a-\u202e\u2066-\u2069]")
_VOID = {"meta", "br"}


class Markup(str):
    """Text that is markup already. Made by ``tag`` and ``join`` only."""

    __slots__ = ()


def tag(name: str, /, *children: str, **attributes: object) -> Markup:
    """One element. Attributes that are None are left out; ``class_`` is ``class`` and ``stroke_width`` is ``stroke-width``."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"' for key, value in attributes.items() if value is not None
    )
    if name in _VOID:
        return Markup(f"<{name}{given}/>")
    return Markup(f"<{name}{given}>{join(children)}</{name}>")


def join(children: list[str] | tuple[str, ...]) -> Markup:
    """One after another, escaped where needed."""
    return Markup("".join(child if isinstance(child, Markup) else escape(child) for child in children))


def escape(text: str) -> str:
    """Text for an element or a quoted attribute."""
    clean = _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)
    return clean.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def cut(text: str, limit: int) -> str:
    """At most ``limit`` characters, at a space where there is one near; white space becomes single spaces."""
    flat = " ".join(text[: 4 * limit + 100].split())
    if len(flat) <= limit:
        return flat
    kept = flat[:limit].rsplit(" ", 1)[0] if " " in flat[max(limit - 30, 1) : limit] else flat[:limit]
    return kept.rstrip() + " ..."
