"""Settings of ``dpr serve``."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import ClassVar

from dpr.core.compute_settings import DeviceSettings
from dpr.core.errors import ConfigError
from dpr.core.settings import setting
from dpr.retrieval.settings import SEARCH_MODES


@dataclass
class ServeSettings(DeviceSettings):
    """Serves one or more run folders over HTTP, with a web page to try them: http://127.0.0.1:8080

    A folder needs a search.json (dpr retrieve ... search_folder=<folder>); a model without one serves
    embeddings only. label=folder serves a folder under another name. Ctrl-C or SIGTERM ends the service once
    all accepted requests are answered.
    """

    EXAMPLES: ClassVar[str] = """\
dpr serve runs/quickstart
dpr serve runs/first second=runs/other/best port=9000
dpr serve exported/e5
dpr serve runs/first host=0.0.0.0 token_file=token.txt
"""
    folders: list[str] = setting(list, operand="[[LABEL=]RUN_FOLDER ...]", path="input")
    """Folders with a search.json, or models (anything that model_file takes elsewhere)."""
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 = all. Other machines reach the service unless it is a loopback
    address."""
    port: int = setting(8080, least=0, most=65535)
    """Port to listen on; 0 = any free port."""
    token_file: str | None = setting(None, path="input")
    """File with the token that requests must carry, Authorization: Bearer <token>. Absent = no token."""
    anyone: bool = False
    """Allow requests without a token from other machines, if host= is not a loopback address."""
    modes: str = "dense,bm25,hybrid"
    """Search modes to open, if the run folder has their files. The folder's own mode is always open."""
    metadata: str | None = None
    """Fields of the corpora that requests may filter by, with their kinds: section,year:int (without a kind:
    text)."""

    timeout: float = setting(30.0, unit="seconds", above=0.0)
    """Time that a request may wait for its answer before it is refused with 503, and that its body may take
    to arrive."""

    def mode_names(self) -> list[str]:
        """Returns ``modes`` as a list."""
        return [name.strip() for name in self.modes.split(",") if name.strip()]

    def metadata_kinds(self) -> dict[str, str]:
        """Returns ``metadata`` as name -> kind."""
        pairs = (item.strip().partition(":") for item in (self.metadata or "").split(",") if item.strip())
        return {name: kind or "text" for name, _, kind in pairs}

    def check_together(self, prefix: str) -> None:
        if unknown := [name for name in self.mode_names() if name not in SEARCH_MODES]:
            raise ConfigError(
                f"modes={self.modes}: {unknown[0]} is not known; choose from {', '.join(SEARCH_MODES)}"
            )
        for name, kind in self.metadata_kinds().items():
            if kind not in ("text", "int", "float", "bool"):
                raise ConfigError(
                    f"metadata={self.metadata}: {name} is of kind {kind}, expected text, int, float or bool"
                )


def is_loopback(host: str) -> bool:
    """Returns whether a service that listens at ``host`` is reachable from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
