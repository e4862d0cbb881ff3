"""Command lines of documents: the keys of all are checked, and as few are composed as hold every kind of word."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from dpr.cli.arguments import parse
from dpr.cli.keys import check_keys, conf_folder
from dpr.cli.main import COMMANDS
from dpr.core.settings import settings


def check_keys_of(words: Sequence[str]) -> None:
    """Raises a ConfigError where a key, a word or the name of a preset is not known."""
    command = COMMANDS[words[0]]
    known = {entry.key: entry for entry in settings(command.settings_class())}
    has_groups = command.config is not None
    given = parse(words[1:], known, has_groups=has_groups)
    folders = [conf_folder(), *map(Path, given.flags["dir"])] if has_groups else []
    check_keys(given.overrides, known, folders, program=words[0])


def different_ones(lines: Iterable[Sequence[str]]) -> list[Sequence[str]]:
    """Returns the lines, longest first, without those whose kinds of words are all in an earlier one."""
    chosen = []
    seen = set[tuple[str, str]]()
    for words in sorted(lines, key=len, reverse=True):
        kinds = {(words[0], _kind(word)) for word in words}
        if not kinds <= seen:
            seen |= kinds
            chosen.append(words)
    return chosen


def _kind(word: str) -> str:
    key, _, value = word.partition("=")
    if entry := re.match(r"(datasets|ctx_sources|resources|suites\.\w+)\.", key):
        return entry[1]
    is_name = key not in ("qa_dataset", "questions", "ctx_src", "corpus", "split") and re.fullmatch(
        "[a-z]+", value
    )
    return word if is_name else key if value.startswith(("[", "{")) else ""
