"""The page of a service in a real browser: ways of searching are compared, filters apply, no text becomes markup."""

import json
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from dpr.core.records import Origin, Passage
from dpr.embedding.source import PassageSource
from dpr.formats.corpora import write_passages
from dpr.retrieval.search_json import SearchSettings
from dpr.retrieval.settings import IndexerConfig
from tests.helpers.browser import Browser
from tests.helpers.page import ask, choose, contrast, ids, opened_again, text_of, texts_of
from tests.helpers.serving import listening
from tests.unit.retrieval.conftest import World

HOSTILE = [
    "<script>document.title = 'taken'; fetch('https://evil.example/')</script>",
    "<img src=https://evil.example/x onerror=\"document.title = 'taken'\">",
    "</li></ol></section><iframe src=javascript:alert(1)></iframe>",
    "&lt;b&gt; &amp; <b>bold</b> {{7*7}} ${7*7} `",
    "\u202egnp.exe \u05e9\u05dc\u05d5\u05dd <style>* { display: none }</style>",
]


@pytest.fixture(scope="module")
def address(run_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A run searched in three ways, and one whose texts are hostile."""
    folder = tmp_path_factory.mktemp("hostile")
    origins = [Origin(one, f"under {one}", 3, f"https://example.org/{quote(one)}?'<b>\"") for one in HOSTILE]
    passages = [
        Passage(f"zebra {text} {'stripe ' * 100}", text, f"{text} {number}", origin=origins[number])
        for number, text in enumerate(HOSTILE)
    ]
    write_passages(folder / "corpus.jsonl", passages)
    settings = SearchSettings(passages=[PassageSource(folder / "corpus.jsonl")])
    replace(settings, indexer=IndexerConfig(kind="bm25")).write(folder)
    with listening({"run": run_folder, "<b>hostile</b>": folder}) as found:
        yield found


@pytest.fixture
def page(empty_page: Browser, address: str) -> Browser:
    empty_page.open(address)
    empty_page.wait("document.querySelectorAll('#left option').length == 4")
    return empty_page


def found_by(address: str, index: str, question: str) -> list[dict[str, Any]]:
    body = json.dumps({"queries": [question], "index": index}).encode()
    request = urllib.request.Request(f"{address}search", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["results"][0]


def test_two_ways_of_searching_are_compared(page: Browser, address: str, world: World) -> None:
    question = world.questions[3].text
    ask(page, question)
    lists = {"left": [hit["id"] for hit in found_by(address, "run:bm25", question)]}
    lists["right"] = [hit["id"] for hit in found_by(address, "run", question)]
    assert lists["left"] != lists["right"] and lists["left"][0] == "p003"
    for column, other in (("left", "right"), ("right", "left")):
        assert ids(page, column) == lists[column]
        expected = []
        for rank, name in enumerate(lists[column]):
            moved = lists[other].index(name) - rank if name in lists[other] else None
            arrow = (
                f"\u25b2 {moved}" if (moved or 0) > 0 else f"\u25bc {-(moved or 0)}" if moved else "same rank"
            )
            expected.append("only here" if moved is None else arrow)
        assert texts_of(page, f"#hits-{column} .shift") == expected
    both = len(set(lists["left"]) & set(lists["right"]))
    assert text_of(page, "#status").startswith(f"{both} of the first 10 passages are in both columns")
    marks = texts_of(page, "#hits-left .hit:first-child .text:not(.whole) mark")
    assert {mark.lower() for mark in marks} <= set(question.lower().rstrip("?").split()) and len(marks) >= 4
    facts = text_of(page, "#hits-right .facts")
    assert all(part in facts for part in ("dense #", "BM25 #", "in common: ", "corpus.tsv"))
    assert text_of(page, "#time-left").endswith(" ms")

    choose(page, "right", "run:dense")
    dense = [hit["id"] for hit in found_by(address, "run:dense", question)]
    first = f"document.querySelector('#hits-right .hit').dataset.id == {json.dumps(dense[0])}"
    page.wait(f"{first} && !document.querySelector('.stale')")
    assert ids(page, "right") == dense
    assert page.look("document.querySelector('#filter').hidden"), "the passages have no fields"
    opened_again(page)
    page.wait("document.querySelectorAll('#hits-right .hit').length == 10")
    assert ids(page, "right") == dense, "the address holds the whole comparison"
    assert page.problems == []
    assert all(url.startswith(address) for url in page.requested)


def test_an_index_that_is_not_exact_says_so(page: Browser, address: str, world: World) -> None:
    approximate = {"exact": False, "recall": {"values": {"recall@10": 0.9375}}}
    script = (
        "const real = fetch; window.fetch = async (path, options) => { if (path !== 'info') return"
        " real(path, options); const info = await (await real(path)).json(); Object.assign(info.indexes[0],"
        f" {json.dumps(approximate)}); info.indexes[1].exact = false; return Response.json(info); }};"
    )
    added = page.call("Page.addScriptToEvaluateOnNewDocument", source=script)
    try:
        page.open(address)
        page.wait("document.querySelectorAll('#left option').length == 4")
        page.look("document.querySelector('#left').value = 'run:dense'")
        ask(page, world.questions[1].text)
        assert text_of(page, "#time-right").startswith("approximate, recall@10 0.938, ")
        assert text_of(page, "#time-left").startswith("approximate, ")
    finally:
        page.call("Page.removeScriptToEvaluateOnNewDocument", identifier=added["identifier"])


def test_no_text_becomes_markup(page: Browser, address: str) -> None:
    name = "<b>hostile</b>"
    choose(page, "left", name)
    choose(page, "right", name)
    tags = page.look("[...new Set([...document.querySelectorAll('body *')].map(one => one.tagName))].sort()")
    for text in HOSTILE:
        question = f"{text} zebra"
        ask(page, question, len(HOSTILE))
        assert page.look("document.querySelector('#question').value") == question
        shown = text_of(page, "#hits-left")
        assert all(hostile in shown for hostile in HOSTILE)
    page.look("document.querySelector('#hits-left .more').click()")
    assert text_of(page, "#hits-left .whole").startswith("zebra ")
    new = set(
        page.look("[...new Set([...document.querySelectorAll('body *')].map(one => one.tagName))]")
    ) - set(tags)
    assert new <= {"LI", "DIV", "SPAN", "H3", "P", "MARK", "BUTTON", "A"}
    assert text_of(page, "#hits-left .origin").startswith(f"{HOSTILE[-1]}:3 \u00b7 under {HOSTILE[-1]}")
    links = page.look(
        "[...document.querySelectorAll('#hits-left a')].map(link => [link.protocol, link.host, link.rel,"
        " link.target])"
    )
    assert links == [["https:", "example.org", "noopener noreferrer nofollow", "_blank"]] * len(HOSTILE)
    assert text_of(page, "#name-left") == name
    page.open(
        f"{address}#q=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E&left=%3Cscript%3E&right=__proto__&k=constructor"
    )
    page.wait("document.title.startsWith('<img')")
    assert page.look("document.querySelector('#k').value") == "10"
    assert page.problems == []
    assert all(url.startswith(address) for url in page.requested)


def test_only_addresses_of_the_web_become_links(page: Browser) -> None:
    urls = ["javascript:alert(1)", "JavaScript://x.org/%0aalert(1)", "data:text/html,x", "//x.org", "/reload"]
    urls += ["file:///etc/passwd", "x", 7, "http://user@x.org:8/a"]
    hits = [{"id": "1", "score": 1, "origin": {"place": "", "heading": "", "url": url}} for url in urls]
    draw = (
        "import('./page/hits.js').then(({ draw }) => draw(document.querySelector('#hits-left'),"
        f" {json.dumps(hits)}, null))"
    )
    page.look(draw)
    assert page.look(
        "[...document.querySelectorAll('.hit a')].map(link => [link.href, link.textContent])"
    ) == [["http://user@x.org:8/a", "x.org"]]


def test_what_is_refused_is_said(page: Browser, run_folder: Path) -> None:
    page.look("document.querySelector('#question').maxLength = 10000")
    page.type("x" * 8200)
    page.press("Enter")
    page.wait("document.querySelector('#status.bad')")
    assert "at most 8192 characters" in text_of(page, "#status")
    with listening({"run": run_folder}, token="secret", modes="bm25") as address:
        page.open(address)
        page.wait("!document.querySelector('#login').hidden")
        assert "no token" in text_of(page, "#status")
        page.type("wrong")
        page.press("Enter")
        page.wait("document.querySelector('#status').textContent.includes('another token')")
        page.type("secret")
        page.press("Enter")
        page.wait("document.querySelectorAll('#left option').length == 2")
        assert page.look("document.querySelector('#login').hidden")
        assert "secret" not in page.look("location.href")
    page.type("anything")
    page.press("Enter")
    page.wait("document.querySelector('#status').textContent == 'The service does not answer.'")


NAMES = ["one", "two", "three"]
SHALOM, SOF = "\u05e9\u05dc\u05d5\u05dd", "\u05e1\u05d5\u05e3"
SECTIONS = ["<b>intro</b>", "body", SOF]


@pytest.fixture(scope="module")
def served_fields(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("fields")
    for name in NAMES:
        write_run(folder / name, name)
    with listening({name: folder / name for name in NAMES}, metadata="section,year:int,page") as found:
        yield found


def write_run(folder: Path, name: str) -> None:
    folder.mkdir()
    lines = (
        {"_id": f"{name} {number}", "text": f"zebra {SHALOM} {name}" if number % 2 else f"{SHALOM} zebra",
         "section": SECTIONS[number % 3], "metadata": {"year": 2000 + number % 2, "page": f"page {number}"}}
        for number in range(30)
    )  # fmt: skip
    (folder / "corpus.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    SearchSettings(
        passages=[PassageSource(folder / "corpus.jsonl")], indexer=IndexerConfig(kind="bm25")
    ).write(folder)


@pytest.fixture
def fields(empty_page: Browser, served_fields: str) -> Browser:
    empty_page.open(served_fields)
    empty_page.wait("document.querySelectorAll('#left option').length == 3")
    return empty_page


def numbers(page: Browser, column: str = "left") -> set[int]:
    page.wait("!document.querySelector('.stale')")
    return {int(name.split()[1]) for name in ids(page, column)}


def test_a_search_is_limited_to_what_the_filter_names(fields: Browser) -> None:
    fields.look("document.querySelector('#k').value = '50'")
    ask(fields, "zebra", 30)
    fields.click("#filter summary")
    fields.look("document.querySelector('#panel input').focus()")
    assert fields.look("document.querySelector('#filter').open && document.activeElement.type == 'checkbox'")
    names = fields.look(
        "[...document.querySelectorAll('#panel fieldset')].map(one => [...one.children].map(child =>"
        " child.textContent))"
    )
    assert names == [["section", *sorted(SECTIONS)], ["year", "2000", "2001"]]

    fields.press(" ")  # the first box has the focus
    fields.wait("document.querySelectorAll('#hits-left .hit').length == 10")
    assert numbers(fields) == numbers(fields, "right") == set(range(0, 30, 3))
    fields.click("#panel fieldset:nth-of-type(1) label:nth-of-type(2) input")
    fields.wait("document.querySelectorAll('#hits-left .hit').length == 20")
    fields.click("#panel fieldset:nth-of-type(2) label:nth-of-type(1)")
    fields.wait("document.querySelectorAll('#hits-left .hit').length == 10")
    expected = {number for number in range(0, 30, 2) if number % 3 < 2}
    assert numbers(fields) == numbers(fields, "right") == expected
    assert text_of(fields, "summary") == "Filter (2)"
    assert text_of(fields, "#status").endswith("Only passages that match the filter were searched.")
    opened_again(fields)
    fields.wait("document.querySelectorAll('#hits-left .hit').length == 10")
    assert numbers(fields) == expected, "the address holds the filter"

    fields.click("#clear")
    fields.wait("document.querySelectorAll('#hits-left .hit').length == 30")
    fields.look("document.querySelector('#panel input[type=text]').focus()")
    fields.type("page 7")
    fields.press("Enter")
    fields.wait("document.querySelectorAll('#hits-left .hit').length == 1")
    assert numbers(fields) == {7}
    fields.type("7")
    fields.press("Enter")
    fields.wait("document.querySelectorAll('#hits-left .none').length == 1")
    assert fields.problems == []


def test_a_filter_of_a_foreign_address_is_data(fields: Browser, served_fields: str) -> None:
    for odd in (
        "{",
        "null",
        "7",
        "[]",
        '{"ids": {"a": 1}, "metadata": {"section": ["<img src=x>"], "page": "<img src=x>", "no": 1}}',
    ):
        fields.open("about:blank")
        fields.open(f"{served_fields}#q=zebra&filter={odd}")
        fields.wait("document.title.startsWith('zebra') && !document.querySelector('.stale')")
        assert fields.look("document.querySelectorAll('img').length") == 0
        assert fields.look("document.querySelectorAll('.hit').length") == (0 if "page" in odd else 20)
    assert fields.problems == []


def test_an_answer_that_comes_late_does_not_replace_a_newer_one(fields: Browser) -> None:
    fields.look(
        "{ const real = fetch; window.late = []; window.fetch = async (path, options) => { const { signal,"
        " ...rest } = options;"
        " const answer = await real(path, rest);"  # an answer that no abort stops any more
        " if (options.body?.includes('first')) await new Promise((go) => late.push(go)); return answer; } }"
    )
    fields.look("document.querySelector('#question').select()")
    fields.type("zebra first")
    fields.press("Enter")
    fields.wait("late.length == 2")
    ask(fields, f"{SHALOM} second")
    shown = fields.look("document.querySelector('#columns').innerHTML")
    fields.look("late.forEach((go) => go())")
    fields.look("new Promise((done) => setTimeout(done, 50))")
    assert fields.look("document.querySelector('#columns').innerHTML") == shown
    assert fields.look("document.title").startswith(f"{SHALOM} second")
    assert fields.look("document.querySelector('#status.bad')") is None


UNNAMED = """[...document.querySelectorAll('button, input, select, textarea, a, summary')].filter((one) => one.checkVisibility()
  && !(one.labels?.length || one.getAttribute('aria-label') || one.textContent.trim())).map((one) => one.outerHTML)"""


@pytest.mark.parametrize("is_dark", [False, True])
def test_everything_has_a_name_can_be_reached_and_is_seen(fields: Browser, is_dark: bool) -> None:
    fields.size(1200, is_dark=is_dark)
    ask(fields, "zebra three")
    fields.look("document.querySelector('#filter').open = true")
    assert fields.look(UNNAMED) == []
    tree = fields.call("Accessibility.getFullAXTree")["nodes"]
    named = [
        (node["role"]["value"], node["name"]["value"])
        for node in tree
        if not node["ignored"] and node.get("name")
    ]
    assert ("heading", "Search") in named and ("region", "one") in named and ("region", "two") in named
    assert (
        ("textbox", "Question") in named and ("checkbox", "body") in named and ("group", "section") in named
    )
    assert not [
        role
        for role, name in named
        if role in ("button", "checkbox", "combobox", "textbox", "link") and not name.strip()
    ]
    fields.look("document.querySelector('#question').focus()")
    reached = set()
    for _ in range(40):
        fields.press("Tab")
        reached.add(
            fields.look("document.activeElement.id || document.activeElement.closest('#panel')?.id || ''")
        )
        if fields.look("document.activeElement === document.body"):
            break
    assert {"left", "right", "k", "panel", "clear"} <= reached
    behind = dict.fromkeys((".text", ".facts", ".shift", ".more", ".rank"), ".hit")
    behind |= {selector: selector for selector in (".hit mark", "#form button", "#question", "#clear")}
    behind |= dict.fromkeys(("#status", "h2 small", "label", "summary", "legend"), "body")
    for selector, ground in behind.items():
        assert contrast(fields, selector, ground) >= 4.5, selector
    for control in ("fieldset", "select", "#question"):
        assert contrast(fields, control, "body", "borderTopColor") >= 3, control
    for width in (320, 390, 1200):
        fields.size(width, is_dark=is_dark)
        assert fields.look("document.documentElement.scrollWidth") <= width
