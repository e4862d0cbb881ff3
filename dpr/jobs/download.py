"""``dpr download``: files of the catalogue, by their keys."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from dpr.core.errors import ConfigError
from dpr.core.settings import listed, suggestion
from dpr.formats.downloads import download, unpack
from dpr.preparation.settings import DownloadConfig, ResourceConfig
from dpr.storage.outputs import require_writable


def run(config: DownloadConfig) -> None:
    """Downloads the files of the given keys, or lists all keys."""
    if not config.keys():
        width = max((len(key) for key in config.resources), default=0)
        for key, entry in config.resources.items():
            print(f"{key:<{width}}  {_resource(key, entry).about}")
        return
    require_writable(config.output_dir, folder=True)
    for key in wanted(config.keys(), config.resources):
        resource = _resource(key, config.resources[key])
        for url, target in files_of(key, resource, Path(config.output_dir)):
            is_new = download(url, target, sha256=resource.sha256 if url == resource.url else None)
            print(f"{target}: {'fetched' if is_new else 'there already'}, {target.stat().st_size:,} bytes")
            if target.name.endswith(".zip"):
                folder = target.with_suffix("")
                if folder.exists():
                    print(f"{folder}: there already")
                else:
                    print(f"{folder}: {unpack(target, folder):,} files")


def wanted(names: list[str], resources: Mapping[str, Any]) -> list[str]:
    """Returns the keys of names: a key itself, or all keys below it."""
    chosen: dict[str, None] = {}
    for name in names:
        keys = (
            [name]
            if name in resources
            else [key for key in resources if key.startswith(name.rstrip(".") + ".")]
        )
        if not keys:
            raise ConfigError(
                f"{name} is not a key of"
                f" resources{suggestion(name, resources, otherwise='; dpr download lists all')}"
            )
        chosen |= dict.fromkeys(keys)
    return list(chosen)


def files_of(key: str, resource: ResourceConfig, folder: Path) -> list[tuple[str, Path]]:
    """Returns addresses and their files: ``a.b.c`` is ``a/b/c`` with the ending of the address."""
    url = str(resource.url)
    *folders, name = key.split(".")
    if any(part in ("", "..") or "/" in part or "\\" in part for part in (*folders, name)):
        raise ConfigError(f"the key {key!a} cannot be used as a file name")
    target = folder.joinpath(*folders)
    suffixes = PurePosixPath(urlsplit(url).path).suffixes
    published = "".join(suffixes[-2:] if suffixes[-1:] in ([".gz"], [".bz2"], [".xz"]) else suffixes[-1:])
    suffix = published if resource.suffix is None else resource.suffix
    if resource.parts:
        files = [
            (url.replace("{}", str(number)), target / f"{name}_{number}{suffix}")
            for number in range(resource.parts)
        ]
    else:
        files = [(url, target / f"{name}{suffix}")]
    others = map(str, listed(resource.also))
    return files + [(other, target / PurePosixPath(urlsplit(other).path).name) for other in others]


def _resource(key: str, entry: Any) -> ResourceConfig:
    options = {"url": entry} if isinstance(entry, str) else entry
    if not isinstance(options, Mapping):
        raise ConfigError(f"resources.{key} is not a set of options such as url=<address>")
    return ResourceConfig.from_mapping(options, f"resources.{key}.")
