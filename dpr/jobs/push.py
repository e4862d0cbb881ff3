"""Push settings -> an exported folder -> a repository."""

from __future__ import annotations

from pathlib import Path

from dpr.core.logs import get_logger
from dpr.export.folders import files_to_push, push
from dpr.export.settings import PushConfig

logger = get_logger(__name__)


def run(config: PushConfig) -> None:
    """Uploads the folder, or lists its files where no repository is named."""
    folder = Path(str(config.folder))
    if config.repo is not None:
        logger.info("%s is now %s", folder, push(folder, config.repo, private=config.private, message=config.message))
        return
    names = files_to_push(folder)
    size = sum((folder / name).stat().st_size for name in names)
    print("\n".join(names))
    logger.info("%d files, %.1f MB; dpr push folder=%s repo=user/name uploads them", len(names), size / 1e6, folder)
