"""The page of a service of three runs, whose passages have fields, no titles, and texts from right to left."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dpr.embedding.source import PassageSource
from dpr.retrieval.search_json import SearchSettings
from tests.helpers.browser import Browser
from tests.helpers.page import ask, contrast, ids, opened_again, text_of
from tests.helpers.serving import listening

NAMES = ["one", "two", "three"]
SHALOM, SOF = "\u05e9\u05dc\u05d5\u05dd", "\u05e1\u05d5\u05e3"
SECTIONS = ["<b>intro</b>", "body", SOF]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
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
    replace(
        SearchSettings(passages=[PassageSource(folder / "corpus.jsonl")]), indexer={"kind": "bm25"}
    ).write(folder)


@pytest.fixture
def page(empty_page: Browser, address: str) -> Browser:
    empty_page.open(address)
    empty_page.wait("document.querySelectorAll('#left option').length == 3")
    return empty_page


def numbers(page: Browser, column: str = "left") -> set[int]:
    page.wait("!document.querySelector('.stale')")
    return {int(name.split()[1]) for name in ids(page, column)}


def test_a_search_is_limited_to_what_the_filter_names(page: Browser) -> None:
    page.look("document.querySelector('#k').value = '50'")
    ask(page, "zebra", 30)
    page.click("#filter summary")
    page.look("document.querySelector('#panel input').focus()")
    assert page.look("document.querySelector('#filter').open && document.activeElement.type == 'checkbox'")
    names = page.look(
        "[...document.querySelectorAll('#panel fieldset')].map(one => [...one.children].map(child =>"
        " child.textContent))"
    )
    assert names == [["section", *sorted(SECTIONS)], ["year", "2000", "2001"]]

    page.press(" ")  # the first box has the focus
    page.wait("document.querySelectorAll('#hits-left .hit').length == 10")
    assert numbers(page) == numbers(page, "right") == set(range(0, 30, 3))
    page.click("#panel fieldset:nth-of-type(1) label:nth-of-type(2) input")
    page.wait("document.querySelectorAll('#hits-left .hit').length == 20")
    page.click("#panel fieldset:nth-of-type(2) label:nth-of-type(1)")
    page.wait("document.querySelectorAll('#hits-left .hit').length == 10")
    expected = {number for number in range(0, 30, 2) if number % 3 < 2}
    assert numbers(page) == numbers(page, "right") == expected
    assert text_of(page, "summary") == "Filter (2)"
    assert text_of(page, "#status").endswith("Only passages that match the filter were searched.")
    opened_again(page)
    page.wait("document.querySelectorAll('#hits-left .hit').length == 10")
    assert numbers(page) == expected, "the address holds the filter"

    page.click("#clear")
    page.wait("document.querySelectorAll('#hits-left .hit').length == 30")
    page.look("document.querySelector('#panel input[type=text]').focus()")
    page.type("page 7")
    page.press("Enter")
    page.wait("document.querySelectorAll('#hits-left .hit').length == 1")
    assert numbers(page) == {7}
    page.type("7")
    page.press("Enter")
    page.wait("document.querySelectorAll('#hits-left .none').length == 1")
    assert page.problems == []


def test_a_filter_of_a_foreign_address_is_data(page: Browser, address: str) -> None:
    for odd in (
        "{",
        "null",
        "7",
        "[]",
        '{"ids": {"a": 1}, "metadata": {"section": ["<img src=x>"], "page": "<img src=x>", "no": 1}}',
    ):
        page.open("about:blank")
        page.open(f"{address}#q=zebra&filter={odd}")
        page.wait("document.title.startsWith('zebra') && !document.querySelector('.stale')")
        assert page.look("document.querySelectorAll('img').length") == 0
        assert page.look("document.querySelectorAll('.hit').length") == (0 if "page" in odd else 20)
    assert page.problems == []


def test_an_answer_that_comes_late_does_not_replace_a_newer_one(page: Browser) -> None:
    page.look(
        "{ const real = fetch; window.late = []; window.fetch = async (path, options) => { const { signal,"
        " ...rest } = options;"
        " const answer = await real(path, rest);"  # an answer that no abort stops any more
        " if (options.body?.includes('first')) await new Promise((go) => late.push(go)); return answer; } }"
    )
    page.look("document.querySelector('#question').select()")
    page.type("zebra first")
    page.press("Enter")
    page.wait("late.length == 2")
    ask(page, f"{SHALOM} second")
    shown = page.look("document.querySelector('#columns').innerHTML")
    page.look("late.forEach((go) => go())")
    page.look("new Promise((done) => setTimeout(done, 50))")
    assert page.look("document.querySelector('#columns').innerHTML") == shown
    assert page.look("document.title").startswith(f"{SHALOM} second")
    assert page.look("document.querySelector('#status.bad')") is None


UNNAMED = """[...document.querySelectorAll('button, input, select, textarea, a, summary')].filter((one) => one.checkVisibility()
  && !(one.labels?.length || one.getAttribute('aria-label') || one.textContent.trim())).map((one) => one.outerHTML)"""


@pytest.mark.parametrize("is_dark", [False, True])
def test_everything_has_a_name_can_be_reached_and_is_seen(page: Browser, is_dark: bool) -> None:
    page.size(1200, is_dark=is_dark)
    ask(page, "zebra three")
    page.look("document.querySelector('#filter').open = true")
    assert page.look(UNNAMED) == []
    tree = page.call("Accessibility.getFullAXTree")["nodes"]
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
    page.look("document.querySelector('#question').focus()")
    reached = set()
    for _ in range(40):
        page.press("Tab")
        reached.add(
            page.look("document.activeElement.id || document.activeElement.closest('#panel')?.id || ''")
        )
        if page.look("document.activeElement === document.body"):
            break
    assert {"left", "right", "k", "panel", "clear"} <= reached
    behind = dict.fromkeys((".text", ".facts", ".shift", ".more", ".rank"), ".hit")
    behind |= {selector: selector for selector in (".hit mark", "#form button", "#question", "#clear")}
    behind |= dict.fromkeys(("#status", "h2 small", "label", "summary", "legend"), "body")
    for selector, ground in behind.items():
        assert contrast(page, selector, ground) >= 4.5, selector
    for control in ("fieldset", "select", "#question"):
        assert contrast(page, control, "body", "borderTopColor") >= 3, control
    for width in (320, 390, 1200):
        page.size(width, is_dark=is_dark)
        assert page.look("document.documentElement.scrollWidth") <= width
