"""reStructuredText: adorned titles, directives, literal blocks, roles; and the cleaning of its markup, which
docstrings need too."""

from __future__ import annotations

import re

from dpr.formats.documents.document import Document, DocumentBuilder

_ADORNMENT = re.compile(r"([=\-~^*+#\"'`.:_])\1{2,}\s*")
_DIRECTIVE_LINE = re.compile(r"\.\. +([\w:+.-]+)::\s*(.*)")
_EXPLICIT = re.compile(r"\.\.(?: |$)")
_OPTION = re.compile(r":[\w -]+:(?:\s.*)?")
_SHOWN = frozenset(
    "note warning tip important hint caution danger attention error admonition seealso versionadded"
    " versionchanged deprecated topic sidebar glossary epigraph function class method attribute data"
    " exception describe option envvar module py:function py:class py:method py:attribute py:data"
    " py:exception rubric".split()
)
_CODE = frozenset(
    "code code-block sourcecode parsed-literal prompt console ipython math doctest testcode".split()
)
_TARGET = re.compile(r"`([^`<]+?)\s*<[^`>]+>`_{1,2}")
_RULE = re.compile(r"[-=~^*+#\"'`.:_|\s]{3,}")
_VERSION_NOTE = re.compile(
    r"\.\. *(versionadded|versionchanged|deprecated|index|currentmodule|module|autosummary|plot)::"
)
_DIRECTIVE = re.compile(r"\.\. *[\w:-]+::|^:(param|type|return|returns|rtype|raises|keyword|arg)\b")
_ROLE = re.compile(r":[a-z][\w:+.-]*:`[~!.]?([^`<]*?)(?:\s*<[^`>]*>)?`")
RULE = _RULE
"""A line of signs only: a row under a title, or of a table."""


def clean_markup(text: str) -> str:
    """Keeps the prose: takes out interpreter sessions, reStructuredText roles, directives and rules, and
    back-quotes."""
    lines = []
    in_session = False
    for line in text.split("\n"):
        stripped = line.strip()
        in_session = bool(stripped) and (in_session or stripped.startswith((">>>", "In [")))
        if in_session or _RULE.fullmatch(stripped) or _VERSION_NOTE.match(stripped):
            continue
        lines.append(_DIRECTIVE.sub("", stripped))
    lines = [
        line if line.isprintable() else "".join(sign if sign.isprintable() else " " for sign in line)
        for line in lines
    ]
    return _TARGET.sub(r"\1", _ROLE.sub(r"\1", "\n".join(lines))).replace("`", "")


def read_restructured_text(text: str) -> Document:
    """The document of a text. Levels of headings follow the order in which their adornments first occur."""
    return _Reader(text.expandtabs().split("\n")).read()


class _Reader:
    def __init__(self, lines: list[str]) -> None:
        self.lines = [line.rstrip() for line in lines]
        self.builder = DocumentBuilder()
        self.levels: dict[tuple[str, bool], int] = {}
        self.block: list[str] = []
        self.start = 1

    def read(self) -> Document:
        index = 0
        while index < len(self.lines):
            index = self._step(index)
        self._flush()
        return self.builder.finish()

    def _step(self, index: int) -> int:
        """Reads what begins at a line; returns the line after it."""
        line = self.lines[index]
        if not line:
            self._flush()
            return index + 1
        if taken := self._heading(index):
            return index + taken
        if match := _DIRECTIVE_LINE.fullmatch(line.lstrip()):
            self._flush()
            return self._directive(index, match[1].lower(), match[2])
        if _EXPLICIT.match(line.lstrip()):  # a comment, a target, a footnote
            self._flush()
            return self._end_of_indented(index)
        if not self.block:
            self.start = index + 1
        self.block.append(line.strip())
        if line.endswith("::"):
            self._flush()
            end = self._end_of_indented(index)
            self.builder.add(" ".join(self.lines[index + 1 : end]), is_prose=False)
            return end
        return index + 1

    def _heading(self, index: int) -> int:
        """Opens the section whose title begins here; returns how many lines that took, 0 where none does."""
        if self.block:
            return 0
        is_over = bool(_ADORNMENT.fullmatch(self.lines[index])) and index + 2 < len(self.lines)
        under = self.lines[index + 1 + is_over] if index + 1 + is_over < len(self.lines) else ""
        title = self.lines[index + is_over]
        if (
            not _ADORNMENT.fullmatch(under)
            or _ADORNMENT.fullmatch(title)
            or not title
            or (not is_over and title[0] == " ")
        ):
            return 0
        if len(under) + 2 < len(title) or (is_over and self.lines[index][0] != under[0]):
            return 0
        level = self.levels.setdefault((under[0], is_over), len(self.levels) + 1)
        self.builder.heading(level, clean_markup(title), index + 1)
        return 2 + is_over

    def _directive(self, index: int, name: str, argument: str) -> int:
        end = self._end_of_indented(index)
        if name in _CODE:
            body = [line for line in self.lines[index + 1 : end] if not _OPTION.fullmatch(line.strip())]
            self.builder.add(" ".join(body), is_prose=False)
            return end
        if name not in _SHOWN:
            return end
        index += 1
        while index < end and _OPTION.fullmatch(self.lines[index].strip()):
            index += 1
        if argument:
            self.start, self.block = index, [argument]
        return index  # what is indented is read like any other text

    def _end_of_indented(self, index: int) -> int:
        own = len(self.lines[index]) - len(self.lines[index].lstrip())
        end = index + 1
        while end < len(self.lines) and (
            not self.lines[end] or len(self.lines[end]) - len(self.lines[end].lstrip()) > own
        ):
            end += 1
        return end

    def _flush(self) -> None:
        lines, self.block = self.block, []
        if not lines:
            return
        text = clean_markup("\n".join(lines)).replace("**", "").replace("::", ":")
        is_prose = not lines[0].startswith(("- ", "* ", "+ ", "#. ", "|", "+-", "=="))
        self.builder.add(text.removeprefix("- ").removeprefix("* "), is_prose=is_prose, line=self.start)
