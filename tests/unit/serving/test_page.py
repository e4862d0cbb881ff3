"""The page of a service in a real browser: two ways of searching are compared, no text becomes markup."""

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
from tests.helpers.browser import Browser
from tests.helpers.page import ask, choose, ids, opened_again, text_of, texts_of
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
    replace(settings, indexer={"kind": "bm25"}).write(folder)
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
