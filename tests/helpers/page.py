"""What a person does on the page of a service, and reads there."""

import json

from tests.helpers.browser import Browser


def ask(page: Browser, question: str, hits: int = 10) -> None:
    page.look("document.querySelector('#question').select()")
    page.type(question)
    page.press("Enter")
    page.wait(f"document.title.startsWith({json.dumps(question)}) && !document.querySelector('.stale')")
    assert page.look("document.querySelectorAll('#hits-left .hit').length") == hits


def opened_again(page: Browser) -> None:
    """Opens the page's address in a new page."""
    address = page.look("location.href")
    page.open("about:blank")
    page.open(address)
    page.wait("document.querySelector('#left option')")


def text_of(page: Browser, selector: str) -> str:
    """The text of the first element."""
    return page.look(f"document.querySelector({json.dumps(selector)}).textContent")


def texts_of(page: Browser, selector: str) -> list[str]:
    return page.look(f"[...document.querySelectorAll({json.dumps(selector)})].map(one => one.textContent)")


def choose(page: Browser, column: str, value: str) -> None:
    """Chooses what the column ``left`` or ``right`` searches."""
    select = f"const one = document.querySelector('#{column}'); one.value = {json.dumps(value)}"
    page.look(f"{{ {select}; one.dispatchEvent(new Event('change')) }}")


def ids(page: Browser, column: str) -> list[str]:
    return page.look(f"[...document.querySelectorAll('#hits-{column} .hit')].map(hit => hit.dataset.id)")


def contrast(page: Browser, selector: str, ground: str, name: str = "color") -> float:
    """Of a colour of an element and the background of another, as WCAG computes it: 1 to 21."""
    style = "getComputedStyle(document.querySelector({})).{}".format
    colours = [
        page.look(style(json.dumps(selector), name)),
        page.look(style(json.dumps(ground), "backgroundColor")),
    ]
    dark, light = sorted(map(_luminance, colours))
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    red, green, blue = (one / 12.92 if one <= 0.03928 else ((one + 0.055) / 1.055) ** 2.4 for one in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
