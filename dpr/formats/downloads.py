"""Downloads of one file over HTTP: resumed after a failure, checked, and moved into place complete.

1. The bytes go into ``<name>.part`` beside the target; ``<name>.part.json`` records the address and version
   they come from.
2. A later attempt asks for the rest (HTTP Range) if the server still has that version; otherwise it starts
   over.
3. Size and checksum are compared, then the part is flushed and renamed.
"""

from __future__ import annotations

import http.client
import os
import re
import shutil
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import IO, Any

from dpr.core.errors import ConfigError, InputError, OutputError
from dpr.core.logs import get_logger
from dpr.core.version import __version__
from dpr.storage.durable import describe_file, flush, read_json, write_json, writing
from dpr.storage.leftovers import open_own
from dpr.storage.run_lock import held, lock_of

logger = get_logger(__name__)

_CHUNK = 2**20
_LOG_EVERY_S = 15.0
_TRANSIENT = (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError)


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if not newurl.startswith("https://") and not (
            newurl.startswith("http://") and req.full_url.startswith("http://")
        ):
            raise InputError(
                f"the server sends us on to {newurl[:200]!a}", file=req.full_url, expected="an https address"
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


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
        InputError: the server refuses or answers invalidly, the connection fails ``attempts`` times in a row
            without progress, the disk is too small, the content differs from ``sha256``, or is not gzip data
            although it should be.
        OutputError: it cannot be written.
        CheckpointError: another process is fetching the same file.
        ConfigError: the address is not an http or https one.
    """
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"the address {url!a} does not begin with http:// or https://")
    part = target.with_name(target.name + ".part")
    if target.is_file():
        _check(target, url, sha256)
        if (
            _notes_of(part).exists() or lock_of(part).exists()
        ):  # of a process that was killed when it had all but finished
            with held(target, file=lock_of(part)):
                _notes_of(part).unlink(missing_ok=True)
        return False
    with writing(part):
        target.parent.mkdir(parents=True, exist_ok=True)
    with held(target, file=lock_of(part)):
        with writing(part, calls_others=True), open_own(part, "ab+") as file:
            _fetch_all(url, file, part, attempts, pause_s, timeout_s)
            file.flush()
            os.fsync(file.fileno())
            try:
                _check(part, url, sha256)
            except InputError:
                file.truncate(0)  # wrong content cannot be resumed
                raise
        with writing(target):
            os.replace(part, target)
            _notes_of(part).unlink(missing_ok=True)
            flush(target.parent)
    return True


def _fetch_all(
    url: str, file: IO[bytes], part: Path, attempts: int, pause_s: float, timeout_s: float
) -> None:
    failures, before = 0, file.seek(0, os.SEEK_END)
    while not _try(url, file, part, timeout_s, is_last=failures + 1 >= attempts):
        size = file.seek(0, os.SEEK_END)
        failures = failures + 1 if size <= before else 0
        before = max(before, size)
        time.sleep(pause_s * 2**failures)


def _try(url: str, file: IO[bytes], part: Path, timeout_s: float, *, is_last: bool) -> bool:
    """Makes one connection; returns whether the file is complete now."""
    try:
        return _fetch(url, file, part, timeout_s)
    except urllib.error.HTTPError as error:
        if error.code == 416 and file.seek(0, os.SEEK_END):  # no more bytes than we have, or another file
            file.truncate(0)
            return False
        if error.code < 500 and error.code != 429:
            raise InputError(f"the server answers {error.code} {error.reason}", file=url) from None
        problem: Exception = error
    except _TRANSIENT as error:
        problem = error
    except InputError:
        raise
    except OSError as error:
        raise OutputError(part, error.strerror or str(error)) from None
    except ValueError as error:  # an invalid address in an answer
        raise InputError(f"the server's answer cannot be read ({error})", file=url) from None
    size = file.seek(0, os.SEEK_END)
    if is_last:
        raise InputError(
            f"the connection fails ({problem})",
            file=url,
            hint=f"{size:,} bytes are kept; the same command continues there",
        ) from None
    logger.warning("%s: %s at %d bytes, trying again", url, problem, size)
    return False


def _fetch(url: str, file: IO[bytes], part: Path, timeout_s: float) -> bool:
    start = file.seek(0, os.SEEK_END)
    notes = _read_notes(part)
    if start and (notes.get("url") != url or not notes.get("version")):
        file.truncate(0)
        start = 0
    headers = {"User-Agent": f"dpr/{__version__}", "Accept-Encoding": "identity"}
    if start:
        headers |= {"Range": f"bytes={start}-", "If-Range": notes["version"]}
    opener = urllib.request.build_opener(_SafeRedirects)
    with opener.open(urllib.request.Request(url, headers=headers), timeout=timeout_s) as response:
        if response.status == 206:
            sent = re.fullmatch(
                r"bytes (\d{1,18})-\d+/(?:\d+|\*)", response.headers.get("Content-Range", ""), re.ASCII
            )
            if sent is None or int(sent[1]) != start:
                raise InputError("the server sent another part than asked for", file=url)
        else:
            file.truncate(0)
            start = 0
        length = response.headers.get("Content-Length")
        if length is not None and not re.fullmatch(r"\d{1,18}", length, re.ASCII):
            raise InputError(
                f"the server announces a Content-Length of {length!a}", file=url, expected="a number of bytes"
            )
        expected = None if length is None else start + int(length)
        # Weak tags do not promise equal bytes, so they do not allow resuming.
        tags = (response.headers.get("ETag"), response.headers.get("Last-Modified"))
        version = next((tag for tag in tags if tag and not tag.startswith("W/")), None)
        write_json(_notes_of(part), {"url": url, "version": version, "bytes": expected})
        free = shutil.disk_usage(part.parent).free
        if expected is not None and expected - start > free:
            found = f"{(expected - start) / 1e9:.1f} GB to fetch and {free / 1e9:.1f} GB free"
            raise InputError(found, file=part, hint="output_dir=FOLDER")
        _copy(response, file, start, expected)
        size = file.seek(0, os.SEEK_END)
        if expected is not None and size != expected:
            raise http.client.IncompleteRead(b"", expected - size)
    return True


def _copy(response: Any, file: IO[bytes], size: int, expected: int | None) -> None:
    logged = time.monotonic()
    while chunk := response.read(_CHUNK):
        file.write(chunk)
        size += len(chunk)
        if time.monotonic() - logged > _LOG_EVERY_S:
            logged = time.monotonic()
            logger.info("%.1f MB%s", size / 1e6, f" of {expected / 1e6:.1f}" if expected else "")


def _check(path: Path, url: str, sha256: str | None) -> None:
    with open(path, "rb") as file:
        if url.endswith(".gz") and file.read(2) != b"\x1f\x8b":
            raise InputError(
                "the content is not gzip data; it may be a page with the reason",
                file=path,
                hint=f"look at {url}",
            )
    if sha256 is not None and (actual := describe_file(path)["sha256"]) != sha256:
        raise InputError(
            f"SHA-256 is {actual}", file=path, expected=sha256, hint="remove the file to fetch it again"
        )


def _notes_of(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def _read_notes(part: Path) -> dict[str, Any]:
    try:
        notes = read_json(_notes_of(part))
    except InputError:
        return {}
    return notes if isinstance(notes, dict) else {}
