"""``key=value`` for the small commands that are not composed by Hydra, so that one way of writing settings serves everywhere."""

from __future__ import annotations

import argparse
import os
import re
from typing import Any

from dpr.cli.keys import suggestion
from dpr.core.errors import ConfigError

_TRUE, _FALSE = ("true", "yes", "1"), ("false", "no", "0")


class PlainParser(argparse.ArgumentParser):
    """An argument parser that takes ``key=value`` beside ``--key value``; a key may have other names."""

    def __init__(self, *, prog: str, operands: str, description: str | None, epilog: str | None, add_help: bool = True) -> None:
        self._settings: dict[str, tuple[str, bool]] = {}
        super().__init__(
            prog=prog,
            description=description,
            epilog=epilog,
            add_help=add_help,
            usage=f"{prog} {operands} [key=value ...]",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def setting(self, name: str, *, also: tuple[str, ...] = (), **options: Any) -> None:
        """Adds the option ``--name``, which can be given as ``name=value`` and under the names in ``also`` too."""
        flag = "--" + name.replace("_", "-")
        action = self.add_argument(flag, **options)
        for key in (name, name.replace("_", "-"), *also):
            self._settings[key] = (flag, action.nargs == 0)

    def parse(self, argv: list[str]) -> argparse.Namespace:
        """Parses a command line.

        Raises:
            ConfigError: ``key=value`` with an unknown key, unless there is a file of that name.
        """
        return self.parse_intermixed_args([token for given in argv for token in self._as_flags(given)])

    def _as_flags(self, token: str) -> list[str]:
        match = re.fullmatch(r"(?:--)?([a-zA-Z][\w.-]*)=(.*)", token, re.DOTALL)
        if match is None:
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
