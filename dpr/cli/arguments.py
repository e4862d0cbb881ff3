"""Command-line tokens as users and launchers write them -> overrides (``key=value``), words that stand alone,
and flags."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dpr.core.errors import ConfigError
from dpr.core.settings import Setting, quoted

_LAUNCHER_FLAGS = ("--local-rank", "--local_rank")
_HELP = ("--help", "-h")
FLAGS = {
    "--cfg": "cfg",
    "-c": "cfg",
    "--config-path": "path",
    "-cp": "path",
    "--config-name": "name",
    "-cn": "name",
    "--config-dir": "dir",
    "-cd": "dir",
}
"""Flags about files of settings, each followed by a value."""

_PATH = re.compile(r"/|\.[A-Za-z]\w*$")
KEEP_SPACES = ("query_prefix", "passage_prefix", "query_prompt", "passage_prompt", "title_template")
_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)


def under_launcher() -> bool:
    """True when torchrun or torch.distributed.launch started this process."""
    return "LOCAL_RANK" in os.environ or ("RANK" in os.environ and "WORLD_SIZE" in os.environ)


@dataclass
class Arguments:
    """The command line, sorted: overrides, words by the setting that they belong to, and the values of
    flags."""

    overrides: list[str] = field(default_factory=list)
    operands: dict[str, str | list[str]] = field(default_factory=dict)
    flags: dict[str, list[str]] = field(default_factory=lambda: {name: [] for name in FLAGS.values()})
    wants_help: bool = False


def parse(argv: Sequence[str], known: Mapping[str, Setting], *, has_groups: bool = True) -> Arguments:
    """Sorts the tokens. ``--key value`` and ``--switch`` are ``key=value`` and ``switch=true``.

    ``--local-rank=N`` from a launcher is dropped (the environment says the same). Spaces around a token and a
    stray backslash at its end (a line continuation gone wrong) are dropped, but for the spaces at the end of
    a prefix.

    Args:
        known: the settings of the command by their keys.
        has_groups: the command's settings are composed of files, so the flags about these are known too.

    Raises:
        ConfigError: a flag without its value, or more words than the command takes.
    """
    result = Arguments()
    names = _names(known, has_groups=has_groups)
    words: list[str] = []
    operands = [entry for entry in known.values() if entry.rule.operand]
    tokens = [token for token in map(_trimmed, argv) if token]
    while tokens:
        token = tokens.pop(0)
        name, has_value, value = token.partition("=")
        key = names.get(name.lstrip("-").replace("-", "_"))
        if name in _LAUNCHER_FLAGS and under_launcher():
            if not has_value and tokens and tokens[0].isdigit():
                tokens.pop(0)
        elif token in _HELP:
            result.wants_help = True
        elif has_groups and name in FLAGS:
            if not has_value and not tokens:
                raise ConfigError(f"{name} needs a value")
            result.flags[FLAGS[name]].append(value if has_value else tokens.pop(0))
        elif key is not None and has_value:
            result.overrides.append(f"{key}={value}")
        elif key is not None and token.startswith("-"):
            result.overrides += _flag(known[key], tokens, names)
        elif token.startswith("--"):
            result.overrides.append(token.removeprefix("--").replace("local-rank", "local_rank", 1))
        elif operands and not token.startswith("-") and _is_word(token, operands):
            words.append(token)
        else:
            result.overrides.append(token)
    result.operands = _assigned(words, operands)
    return result


def _names(known: Mapping[str, Setting], *, has_groups: bool) -> dict[str, str]:
    """Every name of a setting -> its key. A section by its own name stands for the kind that it is of, where
    that is no group of files."""
    names = {} if has_groups else {key.removesuffix(".kind"): key for key in known if key.endswith(".kind")}
    return names | {also: key for key, entry in known.items() for also in (*entry.rule.also, key)}


def _flag(entry: Setting, tokens: list[str], names: Mapping[str, str]) -> list[str]:
    """The overrides that ``--key`` stands for, with the values that follow it, which are taken from
    ``tokens``."""
    if entry.type is bool:
        return [f"{entry.key}=true"]
    taken: list[str] = []
    while tokens and (not taken or entry.rule.takes_words) and not _is_setting(tokens[0], names):
        taken.append(tokens.pop(0))
    return [f"{entry.key}={value}" for value in taken] or [entry.key]


def _is_setting(token: str, names: Mapping[str, str]) -> bool:
    is_flag = token.startswith("-") and not token[1:2].isdigit() and " " not in token
    return is_flag or ("=" in token and token.partition("=")[0] in names)


def _is_word(token: str, operands: Sequence[Setting]) -> bool:
    """Whether a token stands alone. One with ``=`` does where it is a file, a label with a path, or part of a
    text."""
    kinds = " ".join(entry.rule.operand for entry in operands)
    is_labelled = "LABEL=" in kinds and (
        _PATH.search(token.partition("=")[2]) is not None or exists(token.partition("=")[2])
    )
    return "=" not in token or exists(token) or is_labelled or ("TEXT" in kinds and " " in token)


def _assigned(words: list[str], operands: Sequence[Setting]) -> dict[str, str | list[str]]:
    taken: dict[str, str | list[str]] = {}
    for entry in operands:
        if words:
            taken[entry.key] = words.pop(0) if entry.takes_text else [words.pop(0) for _ in list(words)]
    if words:
        raise ConfigError(
            f"{words[0]!r} is one word too many; quote a text with spaces, and write settings as key=value"
        )
    return taken


def _trimmed(token: str) -> str:
    key, _, value = token.lstrip().partition("=")
    if is_one_of(KEEP_SPACES, key) and value.strip() and value[-1].isspace() and not is_ready(value.strip()):
        return f"{key}={quoted(value, resolves=True)}"
    return token.strip().rstrip("\\").rstrip()


def is_one_of(options: tuple[str, ...], key: str) -> bool:
    """Whether a key is one of these options of an entry, or a prompt by its name."""
    section, _, option = key.rpartition(".")
    return option in options or section.endswith("prompts")


def items_of(value: str) -> list[str]:
    """The items of a list: commas outside quotes and brackets separate them, with square brackets around all
    or without."""
    text = value[1:-1] if value.startswith("[") and value.endswith("]") else value
    parts = []
    depth = start = position = 0
    while position < len(text):
        inside = _QUOTED.match(text, position) if text[position] in "'\"" else None
        if inside:
            position = inside.end()
            continue
        depth += (text[position] in "[({") - (text[position] in "])}")
        if text[position] == "," and depth <= 0:
            parts.append(text[start:position])
            start = position + 1
        position += 1
    return [part for part in map(str.strip, [*parts, text[start:]]) if part]


def is_ready(value: str) -> bool:
    """Whether a value is read as it is: none, or quoted."""
    return value.lower() == "null" or value == "???" or _QUOTED.fullmatch(value) is not None


def exists(value: str) -> bool:
    """Whether a value is the name of a file or folder."""
    try:
        return len(value) < 4096 and not value.isdigit() and Path(value).exists()
    except (OSError, ValueError):
        return False
