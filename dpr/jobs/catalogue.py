"""The catalogues ``datasets`` and ``ctx_sources``: names and paths -> files and options. Nothing is opened
here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from dpr.core.errors import ConfigError
from dpr.core.logs import get_logger
from dpr.core.settings import Settings, suggestion

Options = TypeVar("Options", bound=Settings)

logger = get_logger(__name__)
_PREFIXES = {"query_prefix", "passage_prefix"}


@dataclass(frozen=True, slots=True)
class Catalogue(Generic[Options]):
    """How the entries of one kind are read.

    Args:
        key: the setting that holds the entries, ``datasets`` or ``ctx_sources``.
        options: the dataclass of an entry's options.
        what: what an entry is, for messages.
        targets: ``_target_`` values of the original that mean this kind of entry; any other is refused.
        instead: what is used instead of ``_target_``, for the message.
        without_effect: options of the original that are accepted and ignored.
    """

    key: str
    options: type[Options]
    what: str
    targets: tuple[str, ...]
    instead: str
    without_effect: tuple[str, ...] = ()

    def resolve_file(
        self, name: str, entries: Mapping[str, Any], *, setting: str = ""
    ) -> tuple[str, Path, Options]:
        """Short name, file and options of what ``name`` stands for: an existing file, or else a key of the
        catalogue.

        Raises:
            ConfigError: neither, the entry's file is missing, or an option is unknown or of the wrong type.
        """
        path = Path(name)
        if path.is_file():
            return path.name.partition(".")[0] or path.name, path, self.options()
        if name not in entries:
            if path.is_dir():
                raise ConfigError(f"{setting}{name} is a folder, expected the file of a {self.what}")
            raise self.unknown(name, entries, setting=setting)
        options: Any = self.read_entry(name, entries[name])
        file = options.file
        if not file:
            raise ConfigError(f"{self.key}.{name}.file is not set; set {self.key}.{name}.file=<path>")
        form = published_form(Path(file), options.source)
        if form is None:
            raise self.missing(name, file, options)
        return name, form, options

    def read_entry(self, name: str, entry: Any) -> Options:
        """The options of an entry; a text or a list stands for its ``file``. Options given as null keep their
        default.

        Raises:
            ConfigError: an option is unknown, of the wrong type or out of range.
        """
        key = f"{self.key}.{name}"
        if isinstance(entry, str | list | tuple):
            entry = {"file": entry}
        if not isinstance(entry, Mapping):
            raise ConfigError(f"{key} is not a set of options such as file=<path>")
        if (target := entry.get("_target_")) is not None and target not in self.targets:
            raise ConfigError(f"{key}._target_={target} is not supported; leave _target_ out, {self.instead}")
        given = {
            option: value
            for option, value in entry.items()
            if option not in ("_target_", *self.without_effect)
        }
        options = self.options.from_mapping(given, f"{key}.")
        for prefix in _PREFIXES & given.keys():
            warn_of_lost_space(f"{key}.{prefix}", given[prefix] or "")
        return options

    def unknown(
        self, name: str, entries: Mapping[str, Any], *, setting: str = "", also: Iterable[str] = ()
    ) -> ConfigError:
        """What to raise for a name that is neither a file nor an entry."""
        hint = suggestion(
            name,
            entries,
            also=also,
            otherwise=f"; the catalogue has {', '.join(sorted(entries)) or 'no entries'}",
        )
        return ConfigError(
            f"{setting}{name} is neither a file nor a {self.what} of the catalogue {self.key}{hint}"
        )

    def missing(self, name: str, file: str, options: Any) -> ConfigError:
        """What to raise for an entry whose file is not there."""
        where = (
            f"it is published at {options.source}; put it there (.gz as it is will do)"
            if options.source
            else "put it there"
        )
        return ConfigError(
            f"{self.what} {name}: {file} does not exist\n{where}, or name your copy:"
            f" {self.key}.{name}.file=<path>"
        )


def published_form(path: Path, source: str | None) -> Path | None:
    """The file, or the same data as published: compressed, or under the server's name."""
    names = [path.name, path.name + ".gz"]
    if source:
        published = source.rpartition("/")[2]
        names += [published, published.removesuffix(".gz")]
    return next((path.with_name(name) for name in names if path.with_name(name).is_file()), None)


def warn_of_lost_space(key: str, prefix: str) -> None:
    """Warns of a prefix that ends in a colon: most models know "query: ", and shells and YAML easily lose its
    space."""
    if prefix.endswith(":"):
        message = (
            "%s=%r ends without a space, so texts follow the colon at once; write %r if one belongs there"
        )
        logger.warning(message, key, prefix, prefix + " ")
