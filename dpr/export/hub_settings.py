"""Settings of ``dpr push``."""

from __future__ import annotations

from dataclasses import dataclass

from dpr.core.settings import Settings, require_set, setting


@dataclass
class PushConfig(Settings):
    """Uploads a folder that ``dpr export`` wrote to the Hugging Face hub, with the login of that machine (``hf auth login``)."""

    folder: str | None = None
    """The folder. Only files that it was written with are uploaded, as they were written; README.md may have been edited since."""
    repo: str | None = None
    """The repository, user/name, made where it is absent; absent = list the files and upload nothing."""
    private: bool = True
    """Only you see a repository that is made; one that exists stays as it is."""
    message: str = setting("A model exported by dpr")
    """The message of the commit."""

    def check_together(self, prefix: str) -> None:
        require_set(self, {"folder": "exported/first", "message": '"First version"'})
