"""Downloads of one file over HTTP, checked, and in place only when complete. A download that breaks off
begins again from scratch. Zip archives are unpacked: plain files and folders only, inside the target only, up
to a count and a size. Any other entry refuses the whole archive, and nothing of it stays."""

from __future__ import annotations

import stat
import time
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

from dpr.core.errors import ConfigError, DprError, InputError
from dpr.core.logs import ProgressBar, counted, get_logger
from dpr.core.version import __version__
from dpr.storage.durable import MANIFEST, describe_file, durable_file, durable_folder
from dpr.storage.untrusted import is_below

if TYPE_CHECKING:
    from requests import Response

logger = get_logger(__name__)

_CHUNK = 2**20
MAX_FILES = 100_000
MAX_BYTES = 200 * 10**9
# Errors of zipfile for damaged, encrypted and unknown content, and of the disk for an existing name.
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError, ValueError)


def download(
    url: str,
    target: Path,
    *,
    sha256: str | None = None,
    attempts: int = 5,
    pause_s: float = 2.0,
) -> bool:
    """Fetches ``url`` as the file ``target``. Returns False if the file already exists; it is then compared
    with ``sha256`` if that is given.

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
    progress = _Download(f"downloading {target.name}", 0, unit="MB")
    fetch = pooch.HTTPDownloader(
        progressbar=progress,
        chunk_size=_CHUNK,
        timeout=60,
        headers={"User-Agent": f"dpr/{__version__}", "Accept-Encoding": "identity"},
        hooks={"response": _refuse_less_safe},
    )
    failures = 0
    while True:
        try:
            with durable_file(target, "wb") as out:
                progress.reset()
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
        if "NameResolution" in str(problem):  # urllib3 puts it between three layers of brackets
            problem = RequestException("the server is not found; is this machine online?")
        failures += 1
        if failures >= attempts:
            hint = "the same command tries again"
            raise InputError(f"the connection fails ({problem})", file=url, hint=hint) from None
        logger.warning("%s: %s, trying again", url, problem)
        time.sleep(pause_s * 2**failures)


class _Download(ProgressBar):
    """The progress of a download, as pooch reports it. It sets ``total`` if the server states it."""

    def update(self, size: int) -> None:
        if self.total:
            self.advance(size)

    def reset(self) -> None:
        self._done = 0


def _refuse_less_safe(response: Response, **_: Any) -> None:
    """Refuses redirects from https to anything else, or to anything that is no web address."""
    if not response.is_redirect:
        return
    onward = urljoin(response.url, response.headers["location"])
    if not onward.startswith(("https://", "http://" if response.url.startswith("http://") else "https://")):
        raise InputError(
            f"the server redirects to {onward[:200]!a}", file=response.url, expected="an https address"
        )


def _check(path: Path, url: str, sha256: str | None, *, named: str | Path, hint: str | None = None) -> None:
    with open(path, "rb") as file:
        if url.endswith(".gz") and file.read(2) != b"\x1f\x8b":
            found = "the content is not gzip data; it may be a web page with an error message"
            raise InputError(found, file=named, hint=f"open {url} in a browser")
    if sha256 is not None and (actual := describe_file(path)["sha256"]) != sha256:
        raise InputError(f"SHA-256 is {actual}", file=named, expected=sha256, hint=hint)


def unpack(archive: Path, folder: Path, *, max_files: int = MAX_FILES, max_bytes: int = MAX_BYTES) -> int:
    """Unpacks a zip archive as ``folder``, which appears complete or not at all. Returns the number of files.

    Raises:
        InputError: an entry that leaves the folder, is a link or a device, is encrypted, or appears twice;
            too many files or bytes; a damaged archive; ``folder`` exists.
    """
    left = max_bytes
    count = 0
    with durable_folder(folder, metadata={"kind": "unpacked archive", "archive": archive.name}) as temporary:
        try:
            with zipfile.ZipFile(archive) as opened:
                if len(opened.infolist()) > max_files:
                    raise InputError(f"more than {max_files:,} entries", file=archive)
                for info in counted(opened.infolist(), f"unpacking {archive.name}", unit="files"):
                    name = info.orig_filename  # filename is cut at a NUL
                    is_plain = stat.S_IFMT(info.external_attr >> 16) in (0, stat.S_IFREG, stat.S_IFDIR)
                    if (
                        not is_plain
                        or not is_below(name)
                        or ":" in name.partition("/")[0]
                        or name == MANIFEST
                    ):
                        raise InputError(
                            f"the entry {name[:200]!a} leads out of the folder, is a link or a device, or has a"
                            " name reserved by this toolkit",
                            file=archive,
                            expected="plain files and folders",
                        )
                    target = temporary / name
                    if info.is_dir():
                        target.mkdir(parents=True, exist_ok=True)
                        continue
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with opened.open(info) as content, open(target, "xb") as out:
                        while chunk := content.read(_CHUNK):  # may be more than the archive states
                            left -= len(chunk)
                            if left < 0:
                                raise InputError(f"unpacks to more than {max_bytes:,} bytes", file=archive)
                            out.write(chunk)
                    count += 1
        except InputError:
            raise
        except _DAMAGED as error:
            raise InputError(f"cannot be unpacked ({error})", file=archive) from None
    return count
