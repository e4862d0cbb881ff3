"""``dpr download``."""

from __future__ import annotations

from dpr.cli.launch import launch
from dpr.config.download import DownloadConfig


def main(argv: list[str]) -> int:
    """Fetches published data and models by DPR's keys; without a key lists them."""
    keys: list[str] = []
    rest: list[str] = []
    for before, token in zip(["", *argv], argv, strict=False):
        is_key = "=" not in token and not token.startswith("-") and not before.startswith("-c") and not before.startswith("--config")
        (keys if is_key else rest).append(token)
    return launch("download", DownloadConfig, _download, [*rest, *([f"resource=[{','.join(keys)}]"] if keys else [])])


def _download(config: DownloadConfig) -> None:
    from dpr.assembly.download import run

    run(config)
