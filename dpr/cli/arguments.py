"""Sorting of command-line tokens, as users and launchers write them, into overrides (``key=value``), words
that stand alone, and flags."""

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
_LEVELS = {"-q": "WARNING", "-v": "DEBUG"}
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
"""Flags for files of settings, each followed by a value."""

_PATH = re.compile(r"/|\.[A-Za-z]\w*$")
KEEP_SPACES = ("query_prefix", "passage_prefix", "query_prompt", "passage_prompt", "title_template")
_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)


def under_launcher() -> bool:
    """True if torchrun or torch.distributed.launch started this process."""
    return "LOCAL_RANK" in os.environ or ("RANK" in os.environ and "WORLD_SIZE" in os.environ)


@dataclass
class Arguments:
    """Sorted command line: overrides, words by the setting that they belong to, and the values of flags."""

    overrides: list[str] = field(default_factory=list)
    operands: dict[str, str | list[str]] = field(default_factory=dict)
    flags: dict[str, list[str]] = field(default_factory=lambda: {name: [] for name in FLAGS.values()})
    help: str = ""
    """Settings for which help is requested: first, all, or a section; empty if none is."""
    level: str = ""
    """Lowest level of messages; empty for the usual one."""


def parse(argv: Sequence[str], known: Mapping[str, Setting], *, has_groups: bool = True) -> Arguments:
    """Sorts the tokens. ``--key value`` and ``--switch`` are ``key=value`` and ``switch=true``.

    ``--local-rank=N`` from a launcher is dropped, because the environment states the same. Spaces around a
    token and a stray backslash at its end (a line continuation gone wrong) are dropped, except for spaces at
    the end of a prefix.

    Args:
        known: the settings of the command by their keys.
        has_groups: True if the command's settings are composed of files, so that the flags for these are
            known too.

    Raises:
        ConfigError: a flag without its value, or more words than the command takes.
    """
    result = Arguments()
    # Every name of a setting -> its key. A section's own name stands for its kind, unless there is a group of
    # files.
    names = {also: key for key, entry in known.items() for also in (*entry.rule.also, key)}
    if not has_groups:
        names |= {key.removesuffix(".kind"): key for key in known if key.endswith(".kind")}
    words: list[str] = []
    operands = [entry for entry in known.values() if entry.rule.operand]
    tokens = [token for token in map(_trimmed, argv) if token]
    while tokens:
        token = tokens.pop(0)
        # A list written with spaces.
        while "=[" in token and token.count("[") > token.count("]") and tokens and "=" not in tokens[0]:
            token += f" {tokens.pop(0)}"
        name, has_value, value = token.partition("=")
        key = names.get(name.lstrip("-").replace("-", "_"))
        if name in _LAUNCHER_FLAGS and under_launcher():
            if not has_value and tokens and tokens[0].isdigit():
                tokens.pop(0)
        elif name in _HELP:
            result.help = value or "first"
        elif token in _LEVELS:
            result.level = _LEVELS[token]
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
    for entry in operands:
        if words and entry.takes_text:
            result.operands[entry.key] = words.pop(0)
        elif words:
            result.operands[entry.key] = words
            words = []
    if words:
        raise ConfigError(
            f"{words[0]!r} is one word too many; quote a text with spaces, and write settings as key=value"
        )
    return result


def _flag(entry: Setting, tokens: list[str], names: Mapping[str, str]) -> list[str]:
    """Returns the overrides that ``--key`` stands for, with the values that follow it. These are removed from
    ``tokens``."""
    if entry.type is bool:
        return [f"{entry.key}=true"]
    taken: list[str] = []
    while tokens and (not taken or entry.rule.takes_words):
        token = tokens[0]
        is_flag = token.startswith("-") and not token[1:2].isdigit() and " " not in token
        if is_flag or ("=" in token and token.partition("=")[0] in names):
            break
        taken.append(tokens.pop(0))
    return [f"{entry.key}={value}" for value in taken] or [entry.key]


def _is_word(token: str, operands: Sequence[Setting]) -> bool:
    """True if a token stands alone. A token with ``=`` does if it is a file, a label with a path, or part of a text."""
    if "=" not in token or exists(token):
        return True
    kinds = " ".join(entry.rule.operand for entry in operands)
    name = token.partition("=")[2]
    is_path = _PATH.search(name) is not None or exists(name)
    return ("LABEL=" in kinds and is_path) or ("TEXT" in kinds and " " in token)


def _trimmed(token: str) -> str:
    key, _, value = token.lstrip().partition("=")
    if is_one_of(KEEP_SPACES, key) and value.strip() and value[-1].isspace() and not is_ready(value.strip()):
        return f"{key}={quoted(value, resolves=True)}"
    return token.strip().rstrip("\\").rstrip()


def is_one_of(options: tuple[str, ...], key: str) -> bool:
    """True if a key is one of these options of an entry, or a prompt by its name."""
    section, _, option = key.rpartition(".")
    return option in options or section.endswith("prompts")


def items_of(value: str) -> list[str]:
    """Returns the items of a list: commas outside quotes and brackets separate them, with square brackets
    around all or without."""
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
    """True if a value needs no quotes: it is none, or quoted."""
    return value.lower() == "null" or value == "???" or _QUOTED.fullmatch(value) is not None


def exists(value: str) -> bool:
    """True if a value is the name of a file or folder."""
    try:
        return len(value) < 4096 and not value.isdigit() and Path(value).exists()
    except (OSError, ValueError):
        return False
