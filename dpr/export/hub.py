"""An exported folder as a repository of the Hugging Face hub."""

from __future__ import annotations

import re
from pathlib import Path

from dpr.core.errors import ConfigError, InputError, first_line
from dpr.core.logs import get_logger
from dpr.export.model_card import README
from dpr.storage.durable import MANIFEST, read_manifest, verify_folder

logger = get_logger(__name__)

ATTRIBUTES = ".gitattributes"
LARGE_FILES = "".join(f"{pattern} filter=lfs diff=lfs merge=lfs -text\n" for pattern in ("*.safetensors", "*.onnx", "*.onnx.data"))
"""What ``.gitattributes`` of a repository says, so that git stores large files apart, as the hub does."""
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def files_to_push(folder: Path) -> list[str]:
    """The names of the files that the folder was written with, and no others. README.md may have been edited since.

    Raises:
        InputError: it is no exported folder, has no README.md, another file has changed, or there is a link in it, which may lead out.
    """
    names = sorted({*read_manifest(folder)["files"], MANIFEST})
    if README not in names:
        raise InputError(f"has no {README}", file=folder, expected="a folder that dpr export wrote")
    extra = "is not in the manifest"
    edited = (f"{README}: has ", f"{README}: content ")
    problems = [problem for problem in verify_folder(folder) if not problem.endswith(extra)]
    changed = [problem for problem in problems if problem.endswith("is a symbolic link") or not problem.startswith(edited)]
    if changed or not (folder / README).is_file():
        raise InputError(changed[0] if changed else f"{README} is missing", file=folder, hint="export the model again")
    return names


def push(folder: Path, repo: str, *, private: bool, message: str) -> str:
    """Uploads the folder's own files to ``repo``, which is made where it is absent, as one commit. Returns its address.

    Raises:
        ConfigError: ``repo`` is no name of a repository, nobody is logged in, or the network is switched off.
        InputError: as ``files_to_push``; or the hub refuses, or cannot be reached.
    """
    from huggingface_hub import CommitOperationAdd, HfApi, constants, get_token

    names = files_to_push(folder)
    if not _REPOSITORY.fullmatch(repo):
        raise ConfigError(f"repo={repo} is not the name of a repository, expected user/name")
    if constants.HF_HUB_OFFLINE:
        raise ConfigError("HF_HUB_OFFLINE=1 forbids uploads; unset it, or leave repo out to check the folder alone")
    if get_token() is None:
        raise ConfigError("not logged in to the hub, so nothing was uploaded; run hf auth login (or set HF_TOKEN) and the command again")
    api = HfApi()
    try:
        api.create_repo(repo, private=private, exist_ok=True)
        added = [CommitOperationAdd(path_in_repo=name, path_or_fileobj=str(folder / name)) for name in names]
        commit = api.create_commit(repo, added, commit_message=message)
    except Exception as error:  # of the client, of the library that it connects with, of the operating system
        raise InputError(f"was not uploaded to {repo} ({first_line(error)})", file=folder) from error
    return str(commit.commit_url)
