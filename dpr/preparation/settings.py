"""Settings of ``dpr download``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dpr.core.errors import ConfigError
from dpr.core.settings import Settings, listed, setting


@dataclass
class ResourceConfig(Settings):
    """One entry of ``resources``."""

    url: str | None = None
    """Where it is published; ``{}`` stands for the number of a part."""
    parts: int = 0
    """How many parts there are; 0 = one file."""
    suffix: str | None = None
    """Ending of the file's name; absent = that of the address."""
    sha256: str | None = None
    """Checksum of the file as published, where it is known."""
    also: Any = None
    """Addresses of files that belong beside it (a licence)."""
    about: str = ""
    """What it is."""

    def check_together(self, prefix: str) -> None:
        if not self.url:
            raise ConfigError(f"{prefix}url is not set")
        if self.parts < 0 or (self.parts > 0) != ("{}" in self.url) or (self.parts and self.sha256):
            raise ConfigError(f"{prefix}parts: parts and a {{}} in url belong together, and sha256 is for a single file")

    def beside(self) -> list[str]:
        """``also`` as a list."""
        return list(map(str, listed(self.also)))


@dataclass
class DownloadConfig(Settings):
    """Downloads published data. ``dpr download KEY ...`` is short for ``resource=[KEY,...]``."""

    resource: Any = None
    """Keys of ``resources``; the start of a key stands for all keys below it. Absent: the keys are listed."""
    output_dir: str = setting("downloads", requires="resource")
    """Folder to write; the parts of a key are folders in it, where the settings of data sets look for them."""
    resources: dict[str, Any] = field(default_factory=dict)
    """The catalogue: key -> url, parts, suffix, sha256, also, about."""

    def check_together(self, prefix: str) -> None:
        if not self.output_dir:
            raise ConfigError("output_dir is empty")

    def keys(self) -> list[str]:
        """``resource`` as a list."""
        return list(map(str, listed(self.resource)))
