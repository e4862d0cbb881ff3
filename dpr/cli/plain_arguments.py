"""``key=value`` for the small commands that are not composed by Hydra, so that one way of writing settings serves everywhere."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from dpr.core.errors import ConfigError
from dpr.core.settings import Setting
from dpr.core.suggestions import suggestion

if TYPE_CHECKING:
    from dpr.formats.training_files.rows import ReadOptions

_TRUE, _FALSE = ("true", "yes", "1"), ("false", "no", "0")
_ROLES = ("question", "positive", "negative", "title", "answers", "label")


class PlainParser(argparse.ArgumentParser):
    """An argument parser that takes ``key=value`` beside ``--key value``, anywhere among the positional arguments; a key may have other
    names. With ``labels``, unknown words with ``=`` are positional too.
    """

    def __init__(
        self, *, prog: str, operands: str, description: str | None, epilog: str, labels: bool = False, add_help: bool = True
    ) -> None:
        self._settings: dict[str, tuple[str, bool]] = {}
        self._labels = labels
        super().__init__(
            prog=prog,
            description=description,
            epilog=epilog,
            add_help=add_help,
            usage=" ".join([prog, *operands.split(), "[--key value ...]" if labels else "[key=value ...]"]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def setting(self, name: str, *, also: tuple[str, ...] = (), **options: Any) -> None:
        """Adds the option ``--name``, which can be given as ``name=value`` and under the names in ``also`` too."""
        flag = "--" + name.replace("_", "-")
        action = self.add_argument(flag, **options)
        for key in (name, name.replace("_", "-"), *also):
            self._settings[key] = (flag, action.nargs == 0)

    def declared(self, entry: Setting, *, also: tuple[str, ...] = ()) -> None:
        """Adds the option of a setting that is declared in a dataclass."""
        text = entry.doc.replace("%", "%%")
        if entry.type is bool:
            self.setting(entry.key, also=also, action="store_true", help=text)
            return
        text += "" if entry.default is None else " (default %(default)s)"
        kind = next(kind for kind in (int, float, str) if kind in (entry.type, *get_args(entry.type)))
        self.setting(entry.key, also=also, type=kind, default=entry.default, choices=entry.rule.choices or None, help=text)

    def parse(self, argv: list[str]) -> argparse.Namespace:
        """Parses a command line.

        Raises:
            ConfigError: ``key=value`` with an unknown key, unless there is a file of that name.
        """
        return self.parse_intermixed_args([token for given in argv for token in self._as_flags(given)])

    def _as_flags(self, token: str) -> list[str]:
        match = re.fullmatch(r"(?:--)?([a-zA-Z][\w.-]*)=(.*)", token, re.DOTALL)
        if match is None or (self._labels and not token.startswith("--")):
            is_flag = token.startswith("--") and token[2:] in self._settings
            return [self._settings[token[2:]][0]] if is_flag else [token]
        key, value = match[1], match[2]
        if key not in self._settings:
            if token.startswith("--") or os.path.exists(token):
                return [token]
            raise ConfigError(f"unknown setting {key}{suggestion(key, self._settings)}; {self.prog} --help lists all")
        flag, is_switch = self._settings[key]
        if not is_switch:
            return [f"{flag}={value}"]
        if value.lower() not in _TRUE + _FALSE:
            raise ConfigError(f"{key}={value} is not true or false")
        return [flag] if value.lower() in _TRUE else []


def labelled(runs: Sequence[str]) -> list[tuple[str, Path]]:
    """(label, file) of ``label=file``, or of files, whose names are then the labels.

    Raises:
        ConfigError: two files have the same label.
    """
    found: dict[str, Path] = {}
    for run in runs:
        label, has_label, name = run.partition("=")
        file = Path(name if has_label else run)
        label = label if has_label else file.stem
        if label in found:
            raise ConfigError(f"two files have the label {label}; set other labels: label=file")
        found[label] = file
    return list(found.items())


def add_read_settings(parser: PlainParser) -> None:
    """Adds what a file of training data does not state: corpus, queries, split, min_grade and the column of each role."""
    parser.setting("corpus", type=Path, metavar="FILE", help="passages that rows name by id: TSV, JSON lines or Parquet")
    parser.setting("queries", type=Path, metavar="FILE", help="questions that rows name by id")
    parser.setting("split", default="", metavar="NAME", help="part of a folder (default: train, or the only one)")
    least = "judgements, labels and scores from here on are positives, those of 0 or below hard negatives (default 1, of whole grades)"
    parser.setting("min_grade", type=float, metavar="X", help=least)
    for role in _ROLES:
        parser.setting(role, metavar="COLUMN", help=f"column of the {role}; a.b is key b of column a")


def read_options(options: argparse.Namespace) -> ReadOptions:
    """The values of these settings."""
    from dpr.formats.training_files.rows import ReadOptions

    columns = {role: name for role in _ROLES if (name := getattr(options, role))}
    return ReadOptions(options.corpus, options.queries, options.split, options.min_grade, columns)
