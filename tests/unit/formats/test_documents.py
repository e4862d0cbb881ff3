"""Every kind of document is read as headings with what stands under them, and what cannot be read is one
sentence."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path, PurePosixPath

import pytest

from dpr.core.errors import ConfigError, InputError
from dpr.formats.documents.document import Document
from dpr.formats.documents.markup import read_html, read_markdown
from dpr.formats.documents.python_source import read_python
from dpr.formats.documents.registry import READERS, decoded, read_document, read_text
from dpr.formats.documents.restructured_text import read_restructured_text
from dpr.formats.documents.tables import read_table

Outline = list[tuple[tuple[str, ...], list[str]]]


def outline(document: Document) -> Outline:
    return [(section.headings, [block.text for block in section.blocks]) for section in document.sections]


MARKDOWN = """---
title: "The guide"
---
Before any heading, with a [link](a(b).html) and **bold** `code`.

# Install #
<!-- not
shown -->
First line
of a paragraph.

Linux
-----
* one *item*
* another ![picture](x.png)

```python
# not a heading
x = 1
```

| a | b |
|---|---|
| 1 | 2 |

**Why does it fail?**
A: Because &amp; so.
"""


def test_markdown_has_its_headings_of_both_kinds_and_loses_its_marks() -> None:
    document = read_markdown(MARKDOWN)
    assert document.title == "The guide"
    assert outline(document) == [
        ((), ["Before any heading, with a link and bold code."]),
        (("Install",), ["First line of a paragraph."]),
        (("Install", "Linux"), ["one item", "another picture", "# not a heading x = 1", "a b", "1 2"]),
        (("Install", "Linux", "Why does it fail?"), ["Because & so."]),
    ]
    linux, question = document.sections[2:]
    assert [block.is_prose for block in linux.blocks] == [True, True, False, False, False]
    assert (linux.line, linux.is_question, question.is_question) == (12, False, True)


def test_the_only_outermost_heading_is_the_title() -> None:
    assert read_markdown("# Guide\ntext\n## Use\nmore").title == "Guide"
    assert outline(read_markdown("# Guide\ntext\n## Use\nmore")) == [((), ["text"]), (("Use",), ["more"])]
    assert read_markdown("# One\ntext\n# Two\nmore").title == ""


HTML = """<html><head><title>Site - Page</title><style>p {}</style></head><body><nav>Home | About</nav>
<h1>Page<a class="headerlink" href="#x">&para;</a></h1><p>Some <b>bold</b> text.<br>Next line.
<h2>List</h2><ul><li>one<li>two</ul><script>var x = "<p>no</p>";</script>
<dl><dt>Can I?</dt><dd>Yes, you can.</dd></dl><table><tr><td>a</td><td>b</td></tr></table><footer>imprint</footer>"""


def test_html_keeps_what_a_reader_sees() -> None:
    document = read_html(HTML)
    assert document.title == "Page"
    assert outline(document) == [
        ((), ["Some bold text.", "Next line."]),
        (("List",), ["one", "two"]),
        (("List", "Can I?"), ["Yes, you can.", "a b"]),
    ]


RST = """.. _target:

=====
Title
=====

Some :func:`~a.b.text` and ``code``::

    literal = 1

Part
----
.. note:: Take care.
   It is hot.

.. toctree::
   :maxdepth: 2

   other

.. code-block:: python
   :linenos:

   x = 1

.. a comment
"""


def test_restructured_text_has_directives_that_are_shown_and_no_others() -> None:
    assert outline(read_restructured_text(RST)) == [
        ((), ["Some a.b.text and code:", "literal = 1"]),
        (("Part",), ["Take care. It is hot.", "x = 1"]),
    ]


def test_text_has_underlined_and_shouted_headings_and_questions() -> None:
    text = "Guide\n=====\n\nFirst.\n\nREAD THIS\n\nSecond\npart.\n\nQ: Is it?\n\nA: It is.\n"
    assert outline(read_text(text)) == [
        ((), ["First."]),
        (("Read this",), ["Second part."]),
        (("Read this", "Is it?"), ["It is."]),
    ]


def test_docstrings_are_read_and_no_code_runs() -> None:
    code = (
        '"""Module text."""\nraise SystemExit\nclass DataFrame:\n    """Class text.\n\n    More `x`.\n   '
        ' """\n'
    )
    code += '    def _to_csv(self):\n        "Writes."\n'
    document = read_python(code, PurePosixPath("pkg/io/__init__.py"))
    assert document.title == "pkg io"
    assert outline(document) == [
        ((), ["Module text."]),
        (("Data Frame",), ["Class text.", "More x."]),
        (("Data Frame to csv",), ["Writes."]),
    ]


def test_tables_have_questions_or_texts_or_named_cells() -> None:
    faq = read_table('Question,Answer\n"Who, then?","He\nand she"\n', delimiter=",")
    assert outline(faq) == [(("Who, then?",), ["He and she"])]
    assert faq.sections[0].is_question
    assert outline(read_table("id\ttitle\ttext\n1\tA\tlong text\n", delimiter="\t")) == [
        (("A",), ["long text"])
    ]
    assert outline(read_table("city,size\nRome,3\nBonn,\n", delimiter=",")) == [
        ((), ["city: Rome. size: 3"]),
        ((), ["city: Bonn"]),
    ]
    with pytest.raises(InputError, match="not a table"):
        read_table('a,b\n"open,1\n', delimiter=",")


def test_bytes_are_text_of_the_usual_encodings_or_refused() -> None:
    for encoding in ("utf-8", "utf-8-sig", "utf-16", "cp1252"):
        assert (
            decoded("caf\N{LATIN SMALL LETTER E WITH ACUTE}\r\n".encode(encoding))
            == "caf\N{LATIN SMALL LETTER E WITH ACUTE}\n"
        )
    with pytest.raises(InputError, match="byte 0x00"):
        decoded(b"ab\0c")


CHARSETS = {
    "windows-1251": ("cp1251", "\u0420\u0435\u043a\u0430"),
    "koi8-r": ("koi8-r", "\u0420\u0435\u043a\u0430"),
    "gb2312": ("gb18030", "\u6cb3\u6d41\u20ac"),
    "Shift_JIS": ("cp932", "\u5ddd\u2460"),
    "euc-kr": ("cp949", "\uac15\ub620"),
    "ISO-8859-1": ("cp1252", "caf\u00e9 \u201cquoted\u201d"),
    "utf-16": ("utf-8", "\u0420\u0435\u043a\u0430"),
}


@pytest.mark.parametrize(
    "form",
    [
        '<meta charset="{}">',
        "<META http-equiv=Content-Type content='text/html; charset={}'>",
        '<?xml version="1.0" encoding="{}"?>',
    ],
)
@pytest.mark.parametrize("charset", CHARSETS)
def test_a_page_is_read_in_the_charset_that_it_declares(tmp_path: Path, charset: str, form: str) -> None:
    encoding, text = CHARSETS[charset]
    (tmp_path / "a.html").write_bytes(f"{form.format(charset)}<p>{text}</p>".encode(encoding))
    assert outline(read_document(tmp_path / "a.html", PurePosixPath("a.html"))) == [((), [text])]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.html", b"<meta charset=klingon><p>x</p>", "declares the charset 'klingon', which is not known"),
        ("a.html", b"<meta charset=utf-8><p>caf\xe9</p>", "is not utf-8, which the file says it is in"),
        ("a.html", "<p>\u0420\u0435\u043a\u0430</p>".encode("cp1251"), "neither UTF-8 nor Western European"),
        (
            "a.txt",
            "\u0420\u0435\u043a\u0430 \u0438 \u043c\u043e\u0440\u0435".encode("cp1251"),
            "neither UTF-8 nor Western European",
        ),
        ("a.md", "\u6cb3\u6d41\u5411\u5317".encode("gb18030"), "neither UTF-8 nor Western European"),
    ],
)
def test_text_in_an_unknown_encoding_is_refused_and_never_gibberish(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_document(tmp_path / name, PurePosixPath(name))


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    bad = {
        "a.md": b"\0\1",
        "b.py": b"def (",
        "c.txt": b"  \n",
        "d.csv": b"a,b\n",
        "e.html": b"<p></p>",
        "f.py": b"x = 1\n",
    }
    for name, content in bad.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError) as found:
            read_document(tmp_path / name, PurePosixPath(name))
        assert len(str(found.value).splitlines()) == 1, name


def test_any_bytes_are_read_or_refused_by_every_reader(tmp_path: Path) -> None:
    junk = [
        b"# \n===\n```\n| |\n[](",
        b"<h1><li></h2><!-- <![CDATA[",
        b"..\n..\n::\n\n===\n===\n===",
        b"Q: ?\n",
        b"\xff\xfe\x00",
        b"[" * 5000,
    ]
    for suffix in READERS.keys() - {".pdf"}:
        for content in junk:
            (tmp_path / f"x{suffix}").write_bytes(content)
            with suppress(InputError):
                assert read_document(tmp_path / f"x{suffix}", PurePosixPath(f"x{suffix}")).sections


def pdf(lines: list[str]) -> bytes:
    """A PDF of one page of text, as small as can be."""
    stream = ("BT /F 12 Tf 50 700 Td " + " ".join(f"({line}) Tj 0 -14 Td" for line in lines) + " ET").encode()
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 600 800]/Contents 4 0 R/Resources<</Font<</F 5 0 R>>>>>>",
        b"<</Length %d>>stream\n%s\nendstream" % (len(stream), stream),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]
    data, offsets = b"%PDF-1.4\n", []
    for number, item in enumerate(objects, 1):
        offsets.append(len(data))
        data += b"%d 0 obj%s endobj\n" % (number, item)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    return (
        data
        + b"xref\n0 6\n0000000000 65535 f \n%strailer<</Size 6/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF"
        % (table, len(data))
    )


def test_a_pdf_is_read_page_by_page(tmp_path: Path) -> None:
    pytest.importorskip("pypdf", reason="the extra pdf is not installed")
    (tmp_path / "a.pdf").write_bytes(pdf(["A sentence that is inter-", "rupted by a line end."]))
    document = read_document(tmp_path / "a.pdf", PurePosixPath("a.pdf"))
    assert outline(document) == [(("page 1",), ["A sentence that is interrupted by a line end."])]
    (tmp_path / "b.pdf").write_bytes(pdf(["x"])[:300])
    with pytest.raises(InputError):
        read_document(tmp_path / "b.pdf", PurePosixPath("b.pdf"))


def test_a_pdf_without_its_package_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pypdf", None)
    (tmp_path / "a.pdf").write_bytes(pdf(["x"]))
    with pytest.raises(ConfigError, match=r"pip install .*pdf"):
        read_document(tmp_path / "a.pdf", PurePosixPath("a.pdf"))
