"""Documents of every kind become headings and their text; each unreadable one is one sentence."""

import csv
import io
import random
import socket
import sys
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from dpr.core.errors import ConfigError, InputError
from dpr.formats.document_files import READERS, read_document
from dpr.formats.documents.converted import read_html
from dpr.formats.documents.document import Document
from dpr.formats.documents.markdown import read_markdown
from dpr.formats.documents.plain_text import decoded, read_text
from dpr.formats.documents.tables import read_table
from dpr.preparation.passages import cut

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
    document = read_html(HTML.encode())
    assert document.title == "Page"
    assert outline(document) == [
        ((), ["Some bold text. Next line."]),
        (("List",), ["one", "two"]),
        (("List", "Can I?"), ["Yes, you can.", "a b"]),
    ]


def test_signs_of_a_page_are_no_markdown() -> None:
    page = "<p># 3 of <code>&lt;head&gt;</code> &amp;amp; a_b*c <!-- x --> "
    page += "<a href='x/y.html'>x/y.html</a></p>"
    page += "<pre>```\n&lt;b&gt;\n```\n# no heading</pre><p>- no item</p><table><tr><td>a|b<td>c</table>"
    page += "<form>a form</form><input type=checkbox>"
    assert outline(read_html(page.encode())) == [
        ((), ["# 3 of <head> &amp; a_b*c x/y.html", "''' <b> ''' # no heading", "- no item", "a|b c"])
    ]


def test_a_bar_in_a_cell_and_escaped_signs_are_themselves() -> None:
    assert outline(read_markdown("| a\\|b | \\~c |")) == [((), ["a|b ~c"])]


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


def test_restructured_text_is_text_without_its_marks() -> None:
    document = read_text(RST, is_restructured=True)
    assert document.title == "Title"
    found = outline(document)
    assert found[0] == ((), ["Some a.b.text and code:", "literal = 1"])
    assert found[1][0] == ("Part",)
    assert found[1][1][0] == "Take care. It is hot."
    assert "x = 1" in found[1][1]
    assert not any("target" in block or "a comment" in block for _, blocks in found for block in blocks)


def test_text_has_underlined_and_shouted_headings_and_questions() -> None:
    text = "Guide\n=====\n\nFirst.\n\nREAD THIS\n\nSecond\npart.\n\nQ: Is it?\n\nA: It is.\n"
    assert outline(read_text(text)) == [
        ((), ["First."]),
        (("Read this",), ["Second part."]),
        (("Read this", "Is it?"), ["It is."]),
    ]


def test_tables_have_questions_or_texts_or_named_cells() -> None:
    faq = read_table('Question,Answer\n"Who, then?","He\nand she"\n', PurePosixPath("a.csv"))
    assert outline(faq) == [(("Who, then?",), ["He and she"])]
    assert faq.sections[0].is_question
    assert outline(read_table("id\ttitle\ttext\n1\tA\tlong text\n", PurePosixPath("a.tsv"))) == [
        (("A",), ["long text"])
    ]
    assert outline(read_table("city,size\nRome,3\nBonn,\n", PurePosixPath("a.csv"))) == [
        ((), ["city: Rome. size: 3"]),
        ((), ["city: Bonn"]),
    ]
    with pytest.raises(InputError, match="the quoting of this row"):
        read_table('a,b\n"open,1\n', PurePosixPath("a.csv"))


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
    "gb2312": ("gb18030", "\u6cb3\u6d41\u20ac"),
    "Shift_JIS": ("cp932", "\u5ddd\u2460"),
    "ISO-8859-1": ("cp1252", "caf\u00e9 \u201cquoted\u201d"),
    "utf-16": ("utf-8", "\u0420\u0435\u043a\u0430"),
}


@pytest.mark.parametrize("charset", CHARSETS)
def test_a_page_is_read_in_the_charset_that_it_declares(tmp_path: Path, charset: str) -> None:
    encoding, text = CHARSETS[charset]
    for form in ('<meta charset="{}">', '<?xml version="1.0" encoding="{}"?>'):
        (tmp_path / "a.html").write_bytes(f"{form.format(charset)}<p>{text}</p>".encode(encoding))
        assert outline(read_document(tmp_path / "a.html", PurePosixPath("a.html"))) == [((), [text])]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.html", b"<meta charset=klingon><p>x</p>", "declares the charset 'klingon', which is not known"),
        (
            "a.html",
            b"<meta charset=utf-8><p>caf\xe9</p>",
            "is not valid utf-8, the encoding that the file declares",
        ),
        ("a.html", "<p>\u0420\u0435\u043a\u0430</p>".encode("cp1251"), "neither UTF-8 nor Western European"),
        (
            "a.txt",
            "\u0420\u0435\u043a\u0430 \u0438 \u043c\u043e\u0440\u0435".encode("cp1251"),
            "neither UTF-8 nor Western European",
        ),
        ("a.md", "\u6cb3\u6d41\u5411\u5317".encode("gb18030"), "neither UTF-8 nor Western European"),
    ],
)
def test_unknown_encodings_are_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_document(tmp_path / name, PurePosixPath(name))


def test_any_bytes_are_read_or_refused_by_every_reader(tmp_path: Path) -> None:
    junk = [
        b"# \n===\n```\n| |\n[](",
        b"<h1><li></h2><!-- <![CDATA[",
        b"..\n..\n::\n\n===\n===\n===",
        b"Q: ?\n",
        b"\xff\xfe\x00",
        b"[" * 5000,
    ]
    for suffix in READERS:
        for content in junk:
            (tmp_path / f"x{suffix}").write_bytes(content)
            with suppress(InputError):
                assert read_document(tmp_path / f"x{suffix}", PurePosixPath(f"x{suffix}")).sections


def drawn_pdf(path: Path) -> None:
    import matplotlib
    from matplotlib.backends.backend_pdf import PdfPages
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"pdf.fonttype": 42}), PdfPages(path) as pages:
        for text in ("A sentence that is inter-\nrupted by a line end.", "The ferry runs until ten."):
            figure = Figure()
            figure.text(0.1, 0.5, text)
            pages.savefig(figure)


def slides(path: Path) -> None:
    import pptx

    deck = pptx.Presentation()
    for title, text in (("Bridges", "Use <name> if 3 < 4."), ("The <head>", "It runs until ten.")):
        slide = deck.slides.add_slide(deck.slide_layouts[1])
        slide.shapes.title.text = title
        slide.placeholders[1].text = text
    table = slide.shapes.add_table(1, 1, 0, 6_000_000, 100, 100).table
    table.cell(0, 0).text = "a <cell>"
    deck.save(str(path))


def workbook(path: Path, rows: list[tuple[Any, ...]] | None = None) -> None:
    import openpyxl

    book = openpyxl.Workbook()
    for row in rows or [("Question", "Answer"), ("Is it open?", "Until ten."), (), ("What is it?", 3)]:
        book.active.append(row)
    book.save(path)


MADE: dict[str, tuple[Callable[[Path], None], str, Outline]] = {
    "a.pdf": (
        drawn_pdf,
        "",
        [
            (("page 1",), ["A sentence that is interrupted by a line end."]),
            (("page 2",), ["The ferry runs until ten."]),
        ],
    ),
    "a.pptx": (
        slides,
        "",
        [(("Bridges",), ["Use <name> if 3 < 4."]), (("The <head>",), ["It runs until ten.", "a <cell>"])],
    ),
    "a.xlsx": (workbook, "", [(("Is it open?",), ["Until ten."]), (("What is it?",), ["3"])]),
}


@pytest.mark.parametrize("name", MADE)
def test_what_other_programs_write_is_read(tmp_path: Path, name: str) -> None:
    make, title, expected = MADE[name]
    make(tmp_path / name)
    document = read_document(tmp_path / name, PurePosixPath(name))
    assert (document.title, outline(document)) == (title, expected)


@pytest.mark.parametrize("suffix", ["docx", "epub"])
def test_what_pandoc_wrote_has_the_sections_of_what_it_was_made_of(suffix: str) -> None:
    fixtures = Path(__file__).parents[2] / "fixtures" / "documents"
    source = read_document(fixtures / "guide.md", PurePosixPath("guide.md"))
    document = read_document(fixtures / f"guide.{suffix}", PurePosixPath(f"guide.{suffix}"))
    assert document.title == source.title == "The river guide"
    bridges, ferries = outline(document)
    assert bridges == outline(source)[0]
    assert ferries[0] == ("Ferries",) and ferries[1][:5] == outline(source)[1][1][:5]
    assert {section.line for section in document.sections} == {0}, "it has no lines"


def test_nothing_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("it was fetched")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    secret = tmp_path / "secret.txt"
    secret.write_text("a secret")
    page = f"""<!DOCTYPE html [<!ENTITY s SYSTEM "file://{secret}">]><base href="http://a.example/">
        <link rel=stylesheet href="http://a.example/x.css"><p>Text &s;<img src="http://a.example/i.png" alt=drawn>
        <a href="http://a.example/">there</a><iframe src="file://{secret}"></iframe>"""
    assert "drawn" in str(outline(read_html(page.encode()))) and "a secret" not in str(
        outline(read_html(page.encode()))
    )
    source = Path(__file__).parents[2] / "fixtures" / "documents" / "guide.docx"
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(tmp_path / "a.docx", "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name == "word/_rels/document.xml.rels":
                kind = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/image"
                link = f'<Relationship Id="rX" Type="{kind}" TargetMode="External" Target="file://{secret}"/>'
                content = content.replace(b"</Relationships>", f"{link}</Relationships>".encode())
            new.writestr(name, content)
    assert "a secret" not in str(outline(read_document(tmp_path / "a.docx", PurePosixPath("a.docx"))))


@pytest.mark.parametrize("suffix", [".docx", ".pptx", ".epub", ".xlsx"])
def test_zip_bombs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    monkeypatch.setattr("dpr.formats.documents.converted.MOST_UNPACKED", 2**20)
    file = tmp_path / f"bomb{suffix}"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("word/document.xml", bytes(2**22))
    assert file.stat().st_size < 10_000
    with pytest.raises(InputError, match="unpacks to more than 1 MB"):
        read_document(file, PurePosixPath(file.name))


def test_a_cell_far_away_is_read(tmp_path: Path) -> None:
    import openpyxl

    book = openpyxl.Workbook()
    book.active.append(["a", "b"])
    book.active["B1048576"] = "far"
    book.active["XFD9"] = "far, under no heading"
    book.save(tmp_path / "far.xlsx")
    near, far = read_document(tmp_path / "far.xlsx", PurePosixPath("far.xlsx")).sections
    assert (near.line, near.blocks[0].text) == (9, "far, under no heading")
    assert (far.line, far.blocks[0].text) == (1_048_576, "b: far")


CELLS = ["Oak", "a, b; c", 'the "big" one', "two\nlines", "3", "x" * 40, "\u00e4", "", "#", "it's", "a|b"]


@pytest.mark.parametrize("form", ["excel", "commas", "semicolons", "sep=;", "tabs", "titles"])
@pytest.mark.parametrize("header", ["item,price", "question,answer,note", "id,title,text,title", "a,,b"])
def test_every_cell_of_a_table_is_in_a_passage(tmp_path: Path, form: str, header: str) -> None:
    rng = random.Random(f"{form} {header}")
    for number in range(12):
        names = header.split(",")
        widths = range(2, 7)
        if form in ("tabs", "titles"):  # else it is not to be seen what separates the cells
            widths = range(len(names), len(names) + 1)
        rows = [rng.choices(CELLS, k=rng.choice(widths)) for _ in range(rng.randrange(2, 12))]
        wanted = [" ".join(cell.split()) for row in rows for cell in row[names[0] == "id" :]]
        rows.insert(0, names)
        if form == "titles":
            rows[:0] = [["The title"], [], ["of a table"]]
            wanted += ["The title", "of a table"]
        file = tmp_path / f"{number}.{'xlsx' if form == 'excel' else 'csv'}"
        if form == "excel":
            workbook(file, [tuple(row) for row in rows])
        else:
            with open(file, "w", newline="") as out:
                out.write("sep=;\r\n" if form == "sep=;" else "")
                csv.writer(
                    out, delimiter={"tabs": "\t", "commas": ",", "titles": ","}.get(form, ";")
                ).writerows(rows)
        pieces = cut({file.name: read_document(file, PurePosixPath(file.name))}, words=150, overlap=0)
        text = "\n".join(f"{piece.passage().title}\n{piece.passage().text}" for piece in pieces)
        assert [cell for cell in wanted if cell not in text] == []


def test_a_table_below_titles_has_its_header_and_what_is_no_text_is_left_out(tmp_path: Path) -> None:
    rows = [
        ("The spring edition",),
        (),
        ("id", "question", "answer", "source"),
        (7, "Who?", "Ann.", "page 3"),
    ]
    workbook(tmp_path / "a.xlsx", [*rows, (8, "When?", "In May.")])
    document = read_document(tmp_path / "a.xlsx", PurePosixPath("a.xlsx"))
    assert outline(document) == [
        ((), ["The spring edition"]),
        (("Who?",), ["Ann.", "source: page 3"]),
        (("When?",), ["In May."]),
    ]
    assert [section.is_question for section in document.sections] == [False, True, True]
    indexed = read_table(",text\n0,first\n1,second\n", PurePosixPath("a.csv"))  # as pandas writes it
    assert outline(indexed) == [((), ["first"]), ((), ["second"])]


def test_a_formula_that_was_never_computed_is_the_text_of_its_cell(tmp_path: Path) -> None:
    rows = [("item", "price", "note"), ("oak", 40, '="It\'s "&B2&" < 50"'), ("fir", 12, "tall")]
    workbook(tmp_path / "a.xlsx", [*rows, ("all", "=SUM(B2:B3)", None)])
    found = outline(read_document(tmp_path / "a.xlsx", PurePosixPath("a.xlsx")))
    assert found == [
        ((), ['item: oak. price: 40. note: ="It\'s "&B2&" < 50"']),
        ((), ["item: fir. price: 12. note: tall"]),
        ((), ["item: all. price: =SUM(B2:B3)"]),
    ]
    forms = {
        "attributes": (b'<c r="B4">', b'<c t="n" r="B4" s="0">'),
        "shared": (b"<f>", b'<f t="shared" ref="B4:B9" si="0">'),
        # with the value that Excel stores, beside a computed text that is empty
        "computed": (
            b'</row><row r="4">',
            b'<c r="D3" t="str"><f>IF(1,"","")</f><v></v></c></row><row r="4">',
        ),
    }
    for form, (plain, other) in forms.items():
        with zipfile.ZipFile(tmp_path / "a.xlsx") as old, zipfile.ZipFile(tmp_path / "b.xlsx", "w") as new:
            for name in old.namelist():
                content = old.read(name)
                assert "worksheets/" not in name or plain in content, form
                new.writestr(name, content.replace(plain, other))
        assert outline(read_document(tmp_path / "b.xlsx", PurePosixPath("b.xlsx"))) == found, form


ONE_COLUMN = [
    "text\nParis, France\nBerlin, Germany\n",
    "place\nParis, Texas, USA\nRome, Lazio, Italy\n",
    "text\nred;green;blue\nblack;white;grey\n",
    "note\n" + "The pump needs oil\n" * 200 + "red;green;blue\nblack;white;grey\n",
    # no rows of one width, whatever the sign
    "Report 2024\n\nname;age;x\nBob;1,5;\nAnn;2,5;z;more\nEve;3,5;z;more\nKim;4,5;z;more\n",
]


@pytest.mark.parametrize("text", ONE_COLUMN)
def test_texts_of_one_column_are_not_split_at_their_signs(text: str) -> None:
    first, *rows = filter(None, text.split("\n"))
    found = [blocks for _, blocks in outline(read_table(text, PurePosixPath("a.csv")))]
    assert found == ([[row] for row in rows] if first == "text" else [[f"{first}: {row}"] for row in rows])


TABLES = {
    "Report 2024\n\nname;age\nBob;1,5\nAnn;2,5\n": "Report 2024|name: Bob. age: 1,5|name: Ann. age: 2,5",
    "Report 2024\n\nname;age;x\nBob;1,5;\nAnn;2,5;z;extra\n": (
        "Report 2024|name: Bob. age: 1,5|name: Ann. age: 2,5. x: z. extra"
    ),
    'All\n\nname,age,x\nBob,"1; a; b",\nAnn,2,z\n': "All|name: Bob. age: 1; a; b|name: Ann. age: 2. x: z",
    "part;price, EUR\npin;1,50\nrod;2,50\n": "part: pin. price, EUR: 1,50|part: rod. price, EUR: 2,50",
    "price, EUR;part\n1,50;pin\n3;rod;x\n2,5;a\n": (
        "price, EUR: 1,50. part: pin|price, EUR: 3. part: rod. x|price, EUR: 2,5. part: a"
    ),
    "name,notes; more\nBob,x; y\nAnn,z; a\n": "name: Bob. notes; more: x; y|name: Ann. notes; more: z; a",
}


@pytest.mark.parametrize("text", TABLES)
def test_most_rows_tell_which_sign_separates_cells(text: str) -> None:
    found = [blocks for _, blocks in outline(read_table(text, PurePosixPath("a.csv")))]
    assert "|".join(block for blocks in found for block in blocks) == TABLES[text]


def word(path: Path, body: str, *, notes: str = "") -> None:
    space = "http://schemas.openxmlformats.org"
    spaces = f'xmlns:w="{space}/wordprocessingml/2006/main" xmlns:a="{space}/drawingml/2006/main"'
    spaces += f' xmlns:wp="{space}/drawingml/2006/wordprocessingDrawing" xmlns:mc="{space}/markup-compatibility/2006"'
    spaces += ' xmlns:wps="http://schemas.microsoft.com/office/word/2010/wordprocessingShape" xmlns:v="urn:schemas-microsoft-com:vml"'
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("word/document.xml", f"<w:document {spaces}><w:body>{body}</w:body></w:document>")
        if notes:
            archive.writestr("word/footnotes.xml", f"<w:footnotes {spaces}>{notes}</w:footnotes>")


def test_every_text_of_a_word_file_is_read_and_no_deleted_one(tmp_path: Path) -> None:
    def run(text: str) -> str:
        return f"<w:r><w:t>{text}</w:t></w:r>"

    box = f"<w:txbxContent><w:p>{run('BOX')}</w:p></w:txbxContent>"
    shape = (
        f"<a:graphic><a:graphicData><wps:wsp><wps:txbx>{box}</wps:txbx></wps:wsp></a:graphicData></a:graphic>"
    )
    drawing = f"<w:drawing><wp:anchor>{shape}</wp:anchor></w:drawing>"
    fallback = f"<mc:Fallback><w:pict><v:rect><v:textbox>{box}</v:textbox></v:rect></w:pict></mc:Fallback>"
    cell = f"<w:tc><w:p>{run('cell')}</w:p></w:tc>"
    holders = [
        "<w:moveTo>{}</w:moveTo>",
        '<w:fldSimple w:instr="REF x">{}</w:fldSimple>',
        "<w:ins>{}</w:ins>",
        "<w:smartTag>{}</w:smartTag>",
        "<w:customXml>{}</w:customXml>",
        "<w:sdt><w:sdtContent>{}</w:sdtContent></w:sdt>",
        '<w:hyperlink w:anchor="x"><w:dir w:val="rtl">{}</w:dir></w:hyperlink>',
        f"{{}}<w:r>{drawing.replace('BOX', 'drawn')}</w:r>",
        f"{{}}<w:r><mc:AlternateContent><mc:Choice>{drawing}</mc:Choice>{fallback}</mc:AlternateContent></w:r>",
        '{}<w:r><w:footnoteReference w:id="2"/></w:r>',
    ]
    texts = [f"text{number}&lt;i&gt;*_" for number in range(len(holders))]
    body = "".join(f"<w:p>{part.format(run(text))}</w:p>" for part, text in zip(holders, texts, strict=True))
    body += f"<w:tbl><w:tr>{cell}</w:tr><w:customXml><w:tr>{cell.replace('cell', 'custom')}</w:tr></w:customXml></w:tbl>"
    body += f"<w:p><w:del>{run('deleted')}</w:del><w:moveFrom>{run('moved')}</w:moveFrom>{run('left')}</w:p>"
    note = f'<w:footnote w:id="2"><w:p><w:moveTo>{run("noted")}</w:moveTo></w:p></w:footnote>'
    word(tmp_path / "a.docx", body, notes=note)
    found = str(outline(read_document(tmp_path / "a.docx", PurePosixPath("a.docx"))))
    wanted = [text.replace("&lt;", "<").replace("&gt;", ">") for text in texts]
    wanted += ["cell", "custom", "left", "drawn", "BOX", "noted"]
    assert [text for text in wanted if text not in found] == []
    assert found.count("BOX") == 1
    assert "deleted" not in found and "moved" not in found


def test_notes_are_text_and_the_sign_of_a_permanent_link_is_none() -> None:
    markdown = "# Guide[\u00b6](#guide)\n\nSee[^1] and [x].\n\n[^1]: The note.\n\n[x]: y.html\n\n[Note]: It is hot.\n"
    document = read_markdown(markdown)
    assert document.title == "Guide"
    assert outline(document) == [((), ["See[^1] and [x].", "[^1]: The note.", "[Note]: It is hot."])]
    assert outline(read_text("A [1]_.\n\n.. [1] The note.\n", is_restructured=True)) == [
        ((), ["A [1]_.", "[1] The note."])
    ]
    page = '<h1>Page</h1><aside class="footnote">Noted.</aside><aside>Menu</aside>'
    page += "<form><h2>Part</h2><p>The page is a form.</p></form><form>Search</form>"
    assert outline(read_html(page.encode())) == [((), ["Noted."]), (("Part",), ["The page is a form."])]


def test_a_form_around_a_page_is_content_and_a_form_to_fill_in_is_none() -> None:
    fields = "<form><p><label>Name</label> <input></p><p><button>Send</button></p></form>"
    fields += "<form class=comment-form><p>Required fields are marked.</p><p><textarea></textarea></p></form>"
    pages = [
        "<form id=aspnetForm><div><p>The page.</p></div><select><option>Menu</select></form>",
        "<form><input type=hidden name=__VIEWSTATE><table><tr><td>The page.</table></form>",
    ]
    for page in pages:
        assert outline(read_html((page + fields).encode())) == [((), ["The page."])]


@pytest.mark.parametrize("suffix", [".html", ".pdf", ".docx", ".xlsx"])
def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    for name in ("bs4", "markitdown", "openpyxl", "pdfminer.high_level"):
        monkeypatch.setitem(sys.modules, name, None)
    file = tmp_path / f"a{suffix}"
    file.write_bytes(b"PK\x05\x06" + bytes(18) if suffix in (".docx", ".xlsx") else b"%PDF-1.4\n")
    with pytest.raises(ConfigError, match=r"pip install .*\[documents\]"):
        read_document(file, PurePosixPath(file.name))


def archived(content: str = "<x>") -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("word/document.xml", content)
    return out.getvalue()


PACKED = [b"", b"not an archive", archived(), archived()[:-30]]
UNREADABLE = {
    **dict.fromkeys([".docx", ".pptx", ".epub", ".xlsx"], PACKED),
    ".pdf": [*PACKED, b"%PDF-1.4\n1 0 obj<</Type/Catalog"],
    ".md": [b"\0\1"],
    ".txt": [b"  \n"],
    ".csv": [b"a,b\n"],
    ".html": [b"<p></p>"],
}


@pytest.mark.parametrize("suffix", UNREADABLE)
def test_a_document_that_cannot_be_read_is_one_sentence(tmp_path: Path, suffix: str) -> None:
    for bad in UNREADABLE[suffix]:
        (tmp_path / f"a{suffix}").write_bytes(bad)
        with pytest.raises(InputError) as found:
            read_document(tmp_path / f"a{suffix}", PurePosixPath(f"a{suffix}"))
        assert len(str(found.value).splitlines()) == 1
