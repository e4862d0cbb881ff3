"""A headless Chromium, driven by its DevTools protocol through a pipe."""

import fcntl
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
KEYS = {"Enter": (13, "\r"), "Backspace": (8, ""), "Escape": (27, ""), "Tab": (9, ""),
        "ArrowDown": (40, ""), "ArrowUp": (38, ""), "ArrowLeft": (37, ""),
        "ArrowRight": (39, "")}  # fmt: skip
_PATIENCE_S = 60


class Browser:
    """One page, with the addresses ``requested`` and the ``problems`` that it reported."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._out, self._in = (
            os.fdopen(to_browser, "wb", buffering=0),
            os.fdopen(from_browser, "rb", buffering=0),
        )
        self._left = b""
        self._number = 0
        self._session: str | None = None
        self.requested: list[str] = []
        self.problems: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Calls a method of the protocol; what the page reports meanwhile is kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        self._out.write(json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._number:
            self._note(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            if not (part := self._in.read(1 << 16)):
                raise RuntimeError("the browser has ended")
            self._left += part
        line, _, self._left = self._left.partition(b"\0")
        return json.loads(line)

    def _note(self, event: dict[str, Any]) -> None:
        method, values = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requested.append(values["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            details = values["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Log.entryAdded" and values["entry"]["level"] == "error":
            self.problems.append(values["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and values["type"] in ("error", "assert"):
            self.problems.append(str([argument.get("value") for argument in values["args"]]))

    def open(self, address: str) -> None:
        """Goes to an address and waits until it is loaded."""
        if error := self.call("Page.navigate", url=address).get("errorText"):
            raise RuntimeError(f"{address}: {error}")
        self.wait("document.readyState === 'complete'")

    def look(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait(self, script: str) -> None:
        """Waits until an expression is true."""
        end = time.monotonic() + _PATIENCE_S
        while not self.look(f"Boolean({script})"):
            assert time.monotonic() < end, (
                f"{script} does not become true; the page says: {self.look('document.body.innerText')}"
            )
            time.sleep(0.02)

    def type(self, text: str) -> None:
        """Puts a text where the cursor is."""
        self.call("Input.insertText", text=text)

    def press(self, *keys: str) -> None:
        """Presses keys one after another: a character, or a name of ``KEYS``."""
        for key in keys:
            code, text = KEYS.get(key, (ord(key.upper()[0]), key))
            kind = "keyDown" if text else "rawKeyDown"
            self.call("Input.dispatchKeyEvent", type=kind, key=key, text=text, windowsVirtualKeyCode=code)
            self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def click(self, selector: str) -> None:
        """Clicks into the middle of an element."""
        script = f"document.querySelector({json.dumps(selector)})"
        self.look(f"{script}.scrollIntoView({{block: 'center'}})")
        place = self.look(
            f"(() => {{ const r = {script}.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height"
            " / 2] })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call(
                "Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1
            )

    def size(self, width: int, height: int = 900, *, is_dark: bool = False) -> None:
        """The window, and which colours the system prefers."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def close(self) -> None:
        with suppress(OSError):
            self._out.close()
        self._in.close()


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser of its own, without any state; the test is skipped where none is installed."""
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip("no Chromium (apt-get install chromium)")
    theirs, ours = os.pipe(), os.pipe()
    # The browser reads from descriptor 3 and writes to 4. Copies from 10 on, so that putting one there cannot
    # close the other.
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (theirs[0], ours[1])]
    os.close(theirs[0])
    os.close(ours[1])
    profile = tempfile.mkdtemp(prefix="dpr-browser-")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions",
             "--disable-background-networking", "--disable-component-update", "--hide-scrollbars", "--remote-debugging-pipe",
             f"--user-data-dir={profile}"]  # fmt: skip
    null = os.open(os.devnull, os.O_RDWR)
    moves = [
        (os.POSIX_SPAWN_DUP2, high[0], 3),
        (os.POSIX_SPAWN_DUP2, high[1], 4),
        *((os.POSIX_SPAWN_DUP2, null, end) for end in range(3)),
    ]
    process = os.posix_spawn(program, [program, *flags], dict(os.environ), file_actions=moves, setpgroup=0)
    for end in (*high, null):
        os.close(end)
    browser = None
    try:
        browser = Browser(theirs[1], ours[0])
        yield browser
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(process, 0)
        if browser is not None:
            browser.close()
        shutil.rmtree(profile, ignore_errors=True)
