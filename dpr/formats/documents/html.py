"""HTML, which markitdown writes as Markdown."""

from __future__ import annotations

import html
import io
import re
import warnings

from dpr.formats.documents.converters import converted, package, without_lines
from dpr.formats.documents.decoding import decoded
from dpr.formats.documents.document import Document
from dpr.formats.documents.markdown import read_markdown

_NOT_CONTENT = (
    "script style input noscript template svg nav footer aside:not([class*=note],[role^=doc-])"
    " form:not(:has(h1,h2,h3,[name=__VIEWSTATE],p:not(:has(label,input,select,textarea,button))))"
    " form.comment-form select button head a.headerlink"
)
"""A form with headings or paragraphs, or that ASP.NET puts around a page, is content."""
# Browsers take some names for a larger encoding; what could be searched for its charset is not UTF-16.
_AS_IN_BROWSERS = {
    "us-ascii": "cp1252",
    "iso-8859-1": "cp1252",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "shift_jis": "cp932",
    "euc-kr": "cp949",
    "utf-16": "utf-8",
}


def read_html(data: bytes) -> Document:
    """Returns the text of a page as its readers see it, without navigation, forms and scripts, in the charset
    that the page declares."""
    bs4 = package("bs4", "HTML")
    with warnings.catch_warnings(action="ignore"):
        declared = bs4.dammit.EncodingDetector.find_declared_encoding(data, is_html=True) or ""
        charset = _AS_IN_BROWSERS.get(declared.lower(), declared)
        soup = bs4.BeautifulSoup(decoded(data, charset), "lxml")
    has_heading = soup.find("h1") is not None
    title = soup.title.get_text() if soup.title is not None and not has_heading else ""
    for node in soup.find_all(string=lambda node: isinstance(node, bs4.element.PreformattedString)):
        node.extract()  # comments and declarations
    for tag in soup.select(", ".join(_NOT_CONTENT.split())):
        tag.decompose()
    for tag in soup("a"):
        tag.unwrap()
    for node in soup.find_all(string=re.compile("[<&]|```")):
        if node.find_parent("pre") is None:
            node.replace_with(html.escape(node, quote=False))  # its signs are no tags of the Markdown
        else:
            node.replace_with(node.replace("```", "'''"))  # nor the end of the code
    for tag in soup(["dt", "summary"]):  # a defined term, and a question that can be opened
        tag.name = "h6"
    for tag in soup("dd"):
        tag.name = "p"
    markdown, _ = converted(io.BytesIO(str(soup).encode(errors="replace")), ".html")
    return without_lines(read_markdown(markdown, title))
