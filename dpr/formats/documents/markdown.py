"""Markdown as a document: headings of both kinds, front matter, code, tables, lists and the HTML inside."""

from __future__ import annotations

import html
import re

from dpr.formats.documents.document import BELOW_ALL, Document, DocumentBuilder

_FRONT_MATTER = re.compile(r"\A---\s*\n(.*?)\n(?:---|\.\.\.)\s*(?:\n|\Z)", re.DOTALL)
_FRONT_TITLE = re.compile(r"^title:\s*[\"']?(.*?)[\"']?\s*$", re.MULTILINE | re.IGNORECASE)
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_HEADING = re.compile(r" {0,3}(#{1,6})(?:[ \t]+(.*?))?(?:[ \t]+#+)?[ \t]*")
_HTML_HEADING = re.compile(r"\s*<h([1-6])\b[^>]*>(.*?)</h\1>\s*", re.IGNORECASE)
_SUMMARY = re.compile(r"\s*(?:<details\b[^>]*>)?\s*<summary\b[^>]*>(.*?)</summary>\s*", re.IGNORECASE)
_BOLD_QUESTION = re.compile(r"\s*(?:\*\*|__)([^*_]+\?)(?:\*\*|__)\s*")
_UNDERLINE = re.compile(r" {0,3}(=+|-+)[ \t]*")
_RULE = re.compile(r" {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}")
_FENCE = re.compile(r"\s*(`{3,}|~{3,})")
_TABLE_RULE = re.compile(r"[\s:|]*-[\s:|-]*")
_CELL_END = re.compile(r"(?<!\\)\|")
_ITEM = re.compile(r"\s*(?:[-*+]|\d{1,3}[.)])[ \t]+")
_NOT_TITLE = re.compile(rf"{_ITEM.pattern}|\s*[|>]")
_REFERENCE = re.compile(r" {0,3}\[(?!\^)[^\]]+\]:\s*\S+(?:\s+[\"'(].*)?")
_IMAGE = re.compile(r"!\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])")
_LINK = re.compile(r"\[([^\[\]]+)\](?:\([^()]*(?:\([^()]*\)[^()]*)*\)|\[[^\]]*\])")
_TAG = re.compile(r"(?<!\\)</?[a-zA-Z][^<>]*>")
_EMPHASIS = re.compile(r"(?<!\\)(\*\*\*|\*\*|\*|(?<!\w)__|(?<!\w)_)(?=\S)(.+?)(?<=\S)(?:\1)(?!\w)")
_ESCAPE = re.compile(r"\\([!-/:-@\[-`{-~])")
_MAX_SETEXT_LINES = 2


def read_markdown(text: str, title: str = "") -> Document:
    """Returns the document of a Markdown text. ``title`` is its title unless its front matter states one.
    Nothing is refused: every text is a document."""
    builder = DocumentBuilder()
    if front := _FRONT_MATTER.match(text):
        stated = _FRONT_TITLE.search(front[1])
        title = stated[1] if stated else title
        text = "\n" * front[0].count("\n") + text[front.end() :]
    text = _COMMENT.sub(lambda match: "\n" * match[0].count("\n"), text)
    lines: list[str] = []  # lines of the open block
    start = 1
    fence = ""

    def flush(*, is_prose: bool = True) -> None:
        """Ends the block that is open."""
        whole = " ".join(lines)
        lines.clear()
        builder.add(plain_text(whole) if is_prose else whole, is_prose=is_prose, line=start)

    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.rstrip()
        mark = _FENCE.match(line)
        if fence:
            if mark and mark[1].startswith(fence) and not line.strip().strip(mark[1][0]):
                flush(is_prose=False)
                fence = ""
            else:
                lines.append(line)
        elif mark:
            flush()
            fence = mark[1]
            start = number
        elif not line.strip():
            flush()
        elif heading := _HEADING.fullmatch(line) or _HTML_HEADING.fullmatch(line):
            flush()
            level = int(heading[1]) if heading[1].isdigit() else len(heading[1])
            builder.heading(level, plain_text(heading[2] or ""), number)
        elif asked := _SUMMARY.fullmatch(line) or _BOLD_QUESTION.fullmatch(line):
            flush()
            builder.heading(BELOW_ALL, plain_text(asked[1]), number)
        elif (
            0 < len(lines) <= _MAX_SETEXT_LINES
            and (under := _UNDERLINE.fullmatch(line))
            and not any(map(_NOT_TITLE.match, lines))
        ):
            builder.heading(1 if under[1][0] == "=" else 2, plain_text(" ".join(lines)), number - 1)
            lines.clear()
        elif _RULE.fullmatch(line) or _REFERENCE.fullmatch(line):
            flush()
        elif line.lstrip().startswith("|"):
            flush()
            if not _TABLE_RULE.fullmatch(line):
                cells = " ".join(_CELL_END.split(line.strip().strip("|")))
                builder.add(plain_text(cells), is_prose=False, line=number)
        else:
            if item := _ITEM.match(line):
                flush()
                line = line[item.end() :]
            if not lines:
                start = number
            lines.append(line.lstrip().removeprefix(">").lstrip())
    flush(is_prose=not fence)
    return builder.finish(title)


def plain_text(text: str) -> str:
    """Removes the marks from a piece of Markdown: links, images, emphasis, code and tags leave their
    texts."""
    text = _LINK.sub(r"\1", _LINK.sub(r"\1", _IMAGE.sub(r"\1", text)))
    text = _TAG.sub(" ", text)
    text = _EMPHASIS.sub(r"\2", _EMPHASIS.sub(r"\2", text)).replace("`", "")
    return html.unescape(_ESCAPE.sub(r"\1", text))
