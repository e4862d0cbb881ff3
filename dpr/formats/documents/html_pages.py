"""HTML: headings, paragraphs, lists and tables of a page, without its navigation, scripts and styles."""

from __future__ import annotations

from html.parser import HTMLParser

from dpr.formats.documents.document import BELOW_ALL, Document, DocumentBuilder

_SKIPPED = frozenset("script style noscript template svg nav footer aside form select button head".split())
_BLOCKS = frozenset(
    "p div section article main header li ul ol dl dd blockquote table tr caption figure figcaption details br hr pre".split()
)
_HEADINGS = {f"h{level}": level for level in range(1, 7)} | {"dt": BELOW_ALL, "summary": BELOW_ALL}
_NOT_PROSE = frozenset(("li", "tr", "pre", "td"))
_CELLS = frozenset(("td", "th"))


def read_html(text: str) -> Document:
    """The document of a page. A broken page is read as far as its tags make sense."""
    parser = _Page()
    parser.feed(text)
    parser.close()
    parser.flush()
    return parser.builder.finish(parser.title if not parser.has_main_heading else "")


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.builder = DocumentBuilder()
        self.title = ""
        self.has_main_heading = False
        self._words: list[str] = []
        self._skipped: list[str] = []
        self._heading = ""
        self._in_title = False
        self._is_prose = True

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "title":
            self._in_title = not self.title
        elif tag in _SKIPPED or ("class", "headerlink") in attrs:
            self._skipped.append(tag)
        elif tag in _HEADINGS:
            self.flush()
            self._heading = tag
        elif tag in _BLOCKS and not self._heading:
            self.flush()
            self._is_prose = tag not in _NOT_PROSE
        elif tag in _CELLS:
            self._words.append(" ")

    def handle_endtag(self, tag: str) -> None:
        if tag == "title":
            self._in_title = False
        elif self._skipped:
            if tag in self._skipped:
                del self._skipped[self._skipped.index(tag) :]
        elif tag == self._heading or (tag in _BLOCKS and not self._heading):
            self.flush()

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title += data
        elif not self._skipped:
            self._words.append(data)

    def flush(self) -> None:
        """Ends the block or heading that is open."""
        text, heading = "".join(self._words), self._heading
        self._words, self._heading = [], ""
        if not text.strip():
            return
        line = self.getpos()[0]
        if heading:
            self.has_main_heading |= heading == "h1"
            self.builder.heading(_HEADINGS[heading], text.rstrip().removesuffix("\N{PILCROW SIGN}"), line)
        else:
            self.builder.add(text, is_prose=self._is_prose, line=line)
            self._is_prose = True
