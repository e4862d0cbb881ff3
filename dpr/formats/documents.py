"""Documents as headings and the text below them. Every reader makes a title and sections, of Markdown
(headings of both kinds, front matter, code, tables, lists and the HTML inside), of plain text, or of the rows
of tables."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path, PurePath

from dpr.core.errors import InputError
from dpr.formats.delimited import table_form, table_rows
from dpr.formats.field_names import PASSAGE_IDS, QUESTION_IDS, normal_name

_ASKED = re.compile(r"(?:Q|Question|Frage)\s?\d*\s?[:.)]\s+(?P<text>.+\?)", re.IGNORECASE)
_ANSWERED = re.compile(r"(?:A|Answer|Antwort)\s?\d*\s?[:.)]\s+", re.IGNORECASE)
QUESTIONS = ("question", "query", "q", "prompt")
ANSWERS = ("answer", "answers", "response", "a", "passage", "reply")
_TITLES = ("title", "name", "heading", "subject", "topic")
_TEXTS = ("text", "body", "content", "description", "abstract", "summary", "passage", "answer")
_NAMES = (*QUESTIONS, *ANSWERS, *_TITLES, *_TEXTS)
_IDS = (*PASSAGE_IDS, *QUESTION_IDS)
_MARKS = ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))
_BINARY = re.compile("[\0-\x08\x0e-\x1a\x1c-\x1f]")
_MOST_ACCENTS = 0.3
BELOW_ALL = 7
"""Level of a heading that every other one ends: a question in a list of questions, a defined term."""
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
_PERMALINK = "\u00b6 "
"""Ending of headings in pages written by Sphinx: a link to itself."""
_RULE_OF_SIGNS = re.compile(r"\s*([=\-~^*+#\"'`.:_])\1{2,}\s*")
_NOT_LETTERS = re.compile(r"[^A-Za-z]")
_MOST_SHOUTED_WORDS = 10
_ROLE = re.compile(r":[a-z][\w:+.-]*:`[~!.]?([^`<]*?)(?:\s*<[^`>]*>)?`")
_DIRECTIVE = re.compile(r"^\.\. *(?:[\w:-]+::|(?=\[))", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """A paragraph (prose), or a list item, table row or piece of code (not prose)."""

    text: str
    is_prose: bool = True


@dataclass(frozen=True, slots=True)
class Section:
    """Text between one heading and the next. ``headings`` are the headings above it, outermost first, without
    the title."""

    headings: tuple[str, ...]
    blocks: tuple[Block, ...]
    line: int = 0
    """Line at which it begins, counted from 1 (a page of a PDF, a row of a table); 0 = unknown."""
    is_question: bool = False
    """True if the last heading is a question that somebody asked, and the blocks answer it."""


@dataclass(frozen=True, slots=True)
class Document:
    """A document as sections. ``title`` is empty if the text states none."""

    title: str
    sections: tuple[Section, ...]
    has_written_headings: bool = True
    """False if headings are names, such as those of functions or pages, that nobody would ask for."""


class DocumentBuilder:
    """Collects headings and blocks in the order of the text."""

    def __init__(self) -> None:
        self._title = ""
        """A first heading without text below it."""
        self._open: list[tuple[int, str]] = []
        self._blocks: list[Block] = []
        self._line = 1
        self._sections: list[tuple[tuple[tuple[int, str], ...], tuple[Block, ...], int]] = []

    def heading(self, level: int, text: str, line: int = 0) -> None:
        """Ends the section before, and all headings of this level and below."""
        self._end_section()
        text = one_line(text).rstrip(_PERMALINK)
        if not self._sections and self._open and level <= self._open[0][0]:
            self._title = self._title or self._open[0][1]
        self._open = [entry for entry in self._open if entry[0] < level] + ([(level, text)] if text else [])
        self._line = line

    def add(self, text: str, *, is_prose: bool = True, line: int = 0) -> None:
        """Adds a block. ``Q: ...?`` opens a section of its own, and ``A:`` in front of the answer is left
        out."""
        text = one_line(text)
        if asked := _ASKED.fullmatch(text):
            self.heading(BELOW_ALL, asked["text"], line)
            return
        if not self._blocks and self._open and self._open[-1][1].endswith("?"):
            text = _ANSWERED.sub("", text, count=1) if _ANSWERED.match(text) else text
        if text:
            self._blocks.append(Block(text, is_prose))

    def finish(self, title: str = "") -> Document:
        """Returns the document. Without a title, the outermost heading becomes the title if there is only one
        and the text begins with it."""
        self._end_section()
        title = one_line(title) or self._title
        outermost = {headings[:1] for headings, _, _ in self._sections}
        drop = 0
        if len(outermost) == 1 and (first := outermost.pop()):
            drop = 1 if title in ("", first[0][1]) else 0
            title = title or first[0][1]
        sections = []
        for headings, blocks, line in self._sections:
            texts = tuple(text for _, text in headings[drop:])
            is_question = bool(texts) and texts[-1].endswith("?")
            sections.append(Section(texts, blocks, line, is_question))
        return Document(title, tuple(sections))

    def _end_section(self) -> None:
        if self._blocks:
            self._sections.append((tuple(self._open), tuple(self._blocks), self._line))
        self._blocks = []


def one_line(text: str) -> str:
    """Replaces white space and characters that cannot be printed by single spaces."""
    text = " ".join(text.split())
    if not text.isprintable():
        text = " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())
    return text


def paragraphs(lines: Sequence[str]) -> list[tuple[int, list[str]]]:
    """Returns runs of lines that are not blank, each with the number of its first line, counted from 1."""
    blocks: list[tuple[int, list[str]]] = []
    is_open = False
    for number, line in enumerate(lines, 1):
        if not line.strip():
            is_open = False
            continue
        if not is_open:
            blocks.append((number, []))
        blocks[-1][1].append(line)
        is_open = True
    return blocks


def name_as_words(name: str) -> str:
    """Splits a name into words: ``pandas.io.parsers.TextFileReader.get_chunk`` gives ``pandas io parsers Text
    File Reader get chunk``."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name)
    return " ".join(re.split(r"[\W_]+", apart)).strip()


def rows_as_sections(numbered: Sequence[tuple[int, Sequence[str]]]) -> list[Section]:
    """Returns a section for every row of a table, with the row's number. All cells of a row are in its text,
    including those beyond the header. The header, row numbers without a name and, beside texts, ids are left
    out.

    The header is the first row, or the first below the titles, which are rows of a single cell above wider
    ones. A title is a section of its own, and so is a row that stands alone.
    """
    rows = [(line, cells) for line, row in numbered if any(cells := list(map(one_line, row)))]
    num_narrow = sum(sum(map(bool, cells)) < 2 for _, cells in rows)
    num_titles = 0
    for _, (first, *others) in rows:
        if 2 * num_narrow > len(rows) or not first or any(others) or first.lower() in _NAMES:
            break
        num_titles += 1
    if num_titles + 1 >= len(rows):
        num_titles = len(rows)
    sections = [
        Section((), (Block(". ".join(filter(None, cells))),), line) for line, cells in rows[:num_titles]
    ]
    if num_titles == len(rows):
        return sections

    header = rows[num_titles][1]
    rows = rows[num_titles + 1 :]
    question = column(header, QUESTIONS)
    answer = column(header, ANSWERS)
    title = column(header, _TITLES)
    body = column(header, _TEXTS)
    is_faq = question is not None and answer is not None
    if is_faq:
        title = question
        body = answer
    elsewhere = set[int | None]()  # columns that are not written as "column: value"
    if body is not None:
        elsewhere = {title, body, *(place for place, name in enumerate(header) if normal_name(name) in _IDS)}
        if not header[0] and all(cells[0].isdigit() for _, cells in rows):
            elsewhere.add(0)
    for line, cells in rows:
        cells += [""] * (len(header) - len(cells))
        others = [
            f"{name}: {cell}" if name else cell
            for place, (name, cell) in enumerate(zip_longest(header, cells, fillvalue=""))
            if cell and place not in elsewhere
        ]
        text = "" if body is None else cells[body]
        headings = () if body is None or title is None or not cells[title] else (cells[title],)
        if not text:  # without a text, the headings become the text
            others = [*headings, *others]
            headings = ()
        parts = Block(text), Block(". ".join(others), is_prose=body is None)
        if blocks := tuple(block for block in parts if block.text):
            sections.append(Section(headings, blocks, line, is_faq and bool(headings)))
    return sections


def column(header: Sequence[str], names: Sequence[str]) -> int | None:
    """Returns the number of the first column with one of these names, trying the names in order."""
    lower = [name.strip().lower() for name in header]
    return next((lower.index(name) for name in names if name in lower), None)


def decoded(data: bytes, charset: str = "") -> str:
    """Decodes the bytes of a file: by its byte order mark, else in ``charset``, else as UTF-8, else as the
    Western European encoding of Windows.

    Raises:
        InputError: the bytes are not in ``charset``, include some that no text has, or are neither UTF-8 nor
        Western European.
    """
    encoding = next((name for mark, name in _MARKS if data.startswith(mark)), charset or "utf-8")
    try:
        text = data.decode(encoding)
    except LookupError:
        found = f"declares the charset {charset[:40]!a}, which is not known"
        raise InputError(found, hint="save the file as UTF-8") from None
    except UnicodeDecodeError as error:
        if encoding != "utf-8" or charset:
            byte = f"byte {error.start + 1} (0x{data[error.start]:02x})"
            raise InputError(f"{byte} is not {encoding}, which the file says it is in") from None
        text = data.decode("cp1252", errors="replace")
        letters = [sign for sign in text if sign.isalpha() or sign == "\ufffd"]
        accents = sum(not sign.isascii() for sign in letters)
        if accents > _MOST_ACCENTS * len(letters):  # Cyrillic, Chinese ... would become gibberish
            found = "neither UTF-8 nor Western European text"
            raise InputError(found, hint="save the file as UTF-8") from None
    if match := _BINARY.search(text):
        raise InputError(f"not text: it holds the byte 0x{ord(match[0]):02x}")
    return text.replace("\r\n", "\n").replace("\r", "\n")


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


def read_text(text: str, *, is_restructured: bool = False) -> Document:
    """Returns the document of a plain text: paragraphs between blank lines.

    A heading is a line over, or between, rows of signs, or a line of capitals that stands alone. Signs that
    occur first mark the outermost headings. In reStructuredText the marks of roles and directives are left
    out, and so are comments and targets.
    """
    builder = DocumentBuilder()
    levels: dict[tuple[str, bool], int] = {}
    if is_restructured:
        text = _DIRECTIVE.sub("", _ROLE.sub(r"\1", text)).replace("`", "").replace("**", "")
    for number, lines in paragraphs(text.split("\n")):
        is_between = len(lines) > 2 and bool(
            _RULE_OF_SIGNS.fullmatch(lines[0]) and _RULE_OF_SIGNS.fullmatch(lines[2])
        )
        title, *below = lines[is_between:]
        if below and (rule := _RULE_OF_SIGNS.fullmatch(below[0])) and not _RULE_OF_SIGNS.fullmatch(title):
            level = levels.setdefault((rule[1], is_between), len(levels) + 1)
            builder.heading(level, title, number)
            lines = below[1:]
        elif (
            len(lines) == 1
            and title.isupper()
            and len(_NOT_LETTERS.sub("", title)) >= 4
            and len(title.split()) <= _MOST_SHOUTED_WORDS
        ):
            builder.heading(BELOW_ALL - 1, title.capitalize(), number)
            continue
        if is_restructured and lines and lines[0].startswith(".. "):
            continue
        body = "\n".join(line for line in lines if not _RULE_OF_SIGNS.fullmatch(line))
        builder.add(body.replace("::", ":") if is_restructured else body, line=number)
    return builder.finish()


def read_table(text: str, path: PurePath) -> Document:
    """Returns a section for every row of a CSV or TSV.

    Raises:
        InputError: the quoting is broken, or there is no row under the header.
    """
    rows = written_rows(text, Path(path), commas=path.suffix.lower() == ".csv")
    if len(rows) < 2:
        raise InputError("no row under the header")
    return Document("", tuple(rows_as_sections(rows)))


def written_rows(text: str, path: Path, *, commas: bool) -> list[tuple[int, list[str]]]:
    """Returns the rows of a CSV or TSV that are not empty, each with its line."""
    lines = list(enumerate(text.split("\n"), 1))
    rows = table_rows(path, table_form(path, lines, commas=commas), lines)
    return [(line, row) for line, row in rows if any(map(str.strip, row))]
