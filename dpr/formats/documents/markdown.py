"""Markdown: headings of both kinds, front matter, code, tables, lists and the HTML inside."""

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
_TABLE_RULE = re.compile(r"\s*\|?[\s:|-]*-[\s:|-]*")
_CELL_END = re.compile(r"(?<!\\)\|")
_ITEM = re.compile(r"\s*(?:[-*+]|\d{1,3}[.)])[ \t]+")
_NOT_TITLE = re.compile(rf"{_ITEM.pattern}|\s*[|>]")
_REFERENCE = re.compile(r" {0,3}\[[^\]]+\]:\s*\S+.*")
_IMAGE = re.compile(r"!\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])")
_LINK = re.compile(r"\[([^\[\]]+)\](?:\([^()]*(?:\([^()]*\)[^()]*)*\)|\[[^\]]*\])")
_TAG = re.compile(r"</?[a-zA-Z][^<>]*>")
_EMPHASIS = re.compile(r"(\*\*\*|\*\*|\*|(?<!\w)__|(?<!\w)_)(?=\S)(.+?)(?<=\S)(?:\1)(?!\w)")
_ESCAPE = re.compile(r"\\([!-/:-@\[-`{-~])")
_MAX_SETEXT_LINES = 2


def read_markdown(text: str, title: str = "") -> Document:
    """The document of a Markdown text, which may state another title. Every text is one: nothing is refused."""
    builder = DocumentBuilder()
    if front := _FRONT_MATTER.match(text):
        stated = _FRONT_TITLE.search(front[1])
        title = stated[1] if stated else title
        text = "\n" * front[0].count("\n") + text[front.end() :]
    text = _COMMENT.sub(lambda match: "\n" * match[0].count("\n"), text)
    _Reader(builder).read(text.split("\n"))
    return builder.finish(title)


def plain_text(text: str) -> str:
    """A piece of Markdown without its marks: links, images, emphasis, code and tags leave their texts."""
    text = _LINK.sub(r"\1", _LINK.sub(r"\1", _IMAGE.sub(r"\1", text)))
    text = _TAG.sub(" ", text)
    text = _EMPHASIS.sub(r"\2", _EMPHASIS.sub(r"\2", text)).replace("`", "")
    return html.unescape(_ESCAPE.sub(r"\1", text))


class _Reader:
    def __init__(self, builder: DocumentBuilder) -> None:
        self.builder = builder
        self.lines: list[str] = []
        self.start = 1

    def read(self, lines: list[str]) -> None:
        fence = ""
        for number, raw in enumerate(lines, 1):
            line = raw.rstrip()
            mark = _FENCE.match(line)
            if fence:
                if mark and mark[1].startswith(fence) and not line.strip().strip(mark[1][0]):
                    self.flush(is_prose=False)
                    fence = ""
                else:
                    self.lines.append(line)
            elif mark:
                self.flush()
                fence = mark[1]
                self.start = number
            else:
                self._line(line, number)
        self.flush(is_prose=not fence)

    def flush(self, *, is_prose: bool = True) -> None:
        """Ends the block that is open."""
        text = " ".join(self.lines)
        self.lines = []
        self.builder.add(plain_text(text) if is_prose else text, is_prose=is_prose, line=self.start)

    def _line(self, line: str, number: int) -> None:
        if not line.strip():
            self.flush()
        elif (heading := _heading(line)) is not None:
            self.flush()
            self.builder.heading(heading[0], plain_text(heading[1]), number)
        elif (
            0 < len(self.lines) <= _MAX_SETEXT_LINES
            and (under := _UNDERLINE.fullmatch(line))
            and not any(map(_NOT_TITLE.match, self.lines))
        ):
            text = " ".join(self.lines)
            self.lines = []
            self.builder.heading(1 if under[1][0] == "=" else 2, plain_text(text), number - 1)
        elif _RULE.fullmatch(line) or _REFERENCE.fullmatch(line):
            self.flush()
        elif line.lstrip().startswith("|"):
            self.flush()
            if not _TABLE_RULE.fullmatch(line):
                self.builder.add(
                    plain_text(" ".join(_CELL_END.split(line.strip().strip("|")))),
                    is_prose=False,
                    line=number,
                )
        else:
            if item := _ITEM.match(line):
                self.flush()
                line = line[item.end() :]
            if not self.lines:
                self.start = number
            self.lines.append(line.lstrip().removeprefix(">").lstrip())


def _heading(line: str) -> tuple[int, str] | None:
    if match := _HEADING.fullmatch(line):
        return len(match[1]), match[2] or ""
    if match := _HTML_HEADING.fullmatch(line):
        return int(match[1]), match[2]
    match = _SUMMARY.fullmatch(line) or _BOLD_QUESTION.fullmatch(line)
    return None if match is None else (BELOW_ALL, match[1])
