"""Downloads of one file over HTTP: checked, and in place only when they are complete. One that breaks off begins
anew."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

from dpr.core.errors import ConfigError, DprError, InputError
from dpr.core.logs import get_logger
from dpr.core.version import __version__
from dpr.storage.durable import describe_file, durable_file

if TYPE_CHECKING:
    from requests import Response

logger = get_logger(__name__)

_CHUNK = 2**20


def download(
    url: str,
    target: Path,
    *,
    sha256: str | None = None,
    attempts: int = 5,
    pause_s: float = 2.0,
    timeout_s: float = 60,
) -> bool:
    """Fetches ``url`` as the file ``target``; False if it exists already (then it is compared with ``sha256``
    if that is given).

    Raises:
        InputError: the server refuses or answers invalidly, the connection fails ``attempts`` times, the
            content differs from ``sha256``, or is not gzip data although it should be.
        OutputError: it cannot be written.
        ConfigError: the address is not an http or https one.
    """
    import pooch
    from requests import HTTPError, RequestException

    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"the address {url!a} does not begin with http:// or https://")
    if target.is_file():
        _check(target, url, sha256, named=target, hint="remove the file to fetch it again")
        return False
    fetch = pooch.HTTPDownloader(
        progressbar=sys.stderr.isatty(),
        chunk_size=_CHUNK,
        timeout=timeout_s,
        headers={"User-Agent": f"dpr/{__version__}", "Accept-Encoding": "identity"},
        hooks={"response": _refuse_less_safe},
    )
    failures = 0
    while True:
        try:
            with durable_file(target, "wb") as out:
                fetch(url, out, None)
                out.flush()
                _check(Path(out.name), url, sha256, named=url)
            return True
        except DprError:
            raise
        except HTTPError as error:
            answer = error.response
            if answer is not None and answer.status_code < 500 and answer.status_code != 429:
                found = f"the server answers {answer.status_code} {answer.reason}"
                raise InputError(found, file=url) from None
            problem: Exception = error
        except ValueError as error:  # an invalid address or length
            raise InputError(f"the server's answer cannot be read ({error})", file=url) from None
        except RequestException as error:
            problem = error
        failures += 1
        if failures >= attempts:
            hint = "the same command tries again"
            raise InputError(f"the connection fails ({problem})", file=url, hint=hint) from None
        logger.warning("%s: %s, trying again", url, problem)
        time.sleep(pause_s * 2**failures)


def _refuse_less_safe(response: Response, **_: Any) -> None:
    """Refuses to be sent on from https to anything else, or to what is no web address."""
    if not response.is_redirect:
        return
    onward = urljoin(response.url, response.headers["location"])
    if not onward.startswith(("https://", "http://" if response.url.startswith("http://") else "https://")):
        raise InputError(
            f"the server sends us on to {onward[:200]!a}", file=response.url, expected="an https address"
        )


def _check(path: Path, url: str, sha256: str | None, *, named: str | Path, hint: str | None = None) -> None:
    with open(path, "rb") as file:
        if url.endswith(".gz") and file.read(2) != b"\x1f\x8b":
            raise InputError(
                "the content is not gzip data; it may be a page with the reason",
                file=named,
                hint=f"look at {url}",
            )
    if sha256 is not None and (actual := describe_file(path)["sha256"]) != sha256:
        raise InputError(f"SHA-256 is {actual}", file=named, expected=sha256, hint=hint)
