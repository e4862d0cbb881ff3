"""Command-line tokens as users and launchers write them -> Hydra's override grammar."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dpr.core.errors import ConfigError
from dpr.core.settings import Setting

_LAUNCHER_FLAGS = ("--local-rank", "--local_rank")
_SWITCHES = ("--help", "-h", "--hydra-help", "--version", "--resolve", "--run", "-r", "--multirun", "-m", "--shell-completion", "-sc")
_WITH_VALUE = ("--cfg", "-c", "--package", "-p", "--config-path", "-cp", "--config-name", "-cn", "--config-dir", "-cd")
_MAYBE_VALUE = ("--info", "-i")
# Flags that Hydra answers itself, without running the job once.
_ANSWERED_BY_HYDRA = {"--hydra-help", "--version", "--shell-completion", "-sc", "--cfg", "-c", "--info", "-i"}

_PLAIN = re.compile(r"[\w./+\-@%*?|:]+", re.ASCII)
_KEEP_SPACES = ("query_prefix", "passage_prefix", "query_prompt", "passage_prompt", "title_template")
_TEXT_OPTIONS = (*_KEEP_SPACES, "special_token", "special_query_token", "query_special_suffix")  # of an entry; "[Q]" is not a list there
_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)


def under_launcher() -> bool:
    """True when torchrun or torch.distributed.launch started this process."""
    return "LOCAL_RANK" in os.environ or ("RANK" in os.environ and "WORLD_SIZE" in os.environ)


@dataclass
class Arguments:
    """The command line, sorted: overrides (``key=value``) and Hydra's flags, whose values follow them."""

    overrides: list[str] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)

    @property
    def wants_help(self) -> bool:
        return bool({"--help", "-h"} & set(self.flags))

    @property
    def is_sweep(self) -> bool:
        return bool({"--multirun", "-m"} & set(self.flags)) or "hydra.mode=MULTIRUN" in self.overrides

    @property
    def is_for_hydra(self) -> bool:
        return bool(_ANSWERED_BY_HYDRA & set(self.flags))

    def values_of(self, *names: str) -> list[str]:
        """The values given to a flag, by any of its names."""
        return [self.flags[place + 1] for place, flag in enumerate(self.flags[:-1]) if flag in names]


def parse(argv: list[str]) -> Arguments:
    """Sorts the tokens.

    ``--local-rank=N`` from a launcher is dropped (the environment says the same), other ``--a.b=c`` become ``a.b=c``. Spaces around a
    token and a stray backslash at its end (a line continuation gone wrong) are dropped, but for the spaces at the end of a prefix.
    """
    result = Arguments()
    tokens = [token for token in map(_trimmed, argv) if token]
    while tokens:
        token = tokens.pop(0)
        name, has_value, value = token.partition("=")
        if name in _LAUNCHER_FLAGS and under_launcher():
            if not has_value and tokens and tokens[0].isdigit():
                tokens.pop(0)
        elif name in _SWITCHES and not has_value:
            result.flags.append(name)
        elif name in _WITH_VALUE:
            if not has_value and not tokens:
                raise ConfigError(f"{name} needs a value")
            result.flags += [name, value if has_value else tokens.pop(0)]
        elif name in _MAYBE_VALUE:
            follows = tokens[0] if tokens and "=" not in tokens[0] and not tokens[0].startswith("-") else None
            result.flags += [name, value if has_value else tokens.pop(0) if follows else "all"]
        else:
            result.overrides.append(token.removeprefix("--").replace("local-rank", "local_rank", 1) if token.startswith("--") else token)
    return result


def _trimmed(token: str) -> str:
    key, _, value = token.lstrip().partition("=")
    if _is_one_of(_KEEP_SPACES, key) and value.strip() and value[-1].isspace() and not _is_ready(value.strip()):
        return f"{key}={_quoted(value)}"
    return token.strip().rstrip("\\").rstrip()


def _is_one_of(options: tuple[str, ...], key: str) -> bool:
    """Whether a key is one of these options of an entry, or a prompt by its name."""
    section, _, option = key.rpartition(".")
    return option in options or section.endswith("prompts")


def quote_values(overrides: list[str], known: Mapping[str, Setting], *, is_sweep: bool) -> list[str]:
    """Quotes values for Hydra's grammar where the setting's type says that the text is meant literally.

    So ``output_dir=runs/a, b (1)`` and ``train_datasets=[my data.json,b=1.json]`` need no second layer of quotes. In a sweep only existing
    paths are quoted, since commas and brackets separate choices there.
    """
    return [_quote_override(override, known, is_sweep) for override in overrides]


def _quote_override(override: str, known: Mapping[str, Setting], is_sweep: bool) -> str:
    key, has_value, raw = override.partition("=")
    name, value = key.strip().lstrip("+"), raw.strip()
    setting = known.get(name)
    is_option = any(entry.is_open and name.startswith(entry.key + ".") for entry in known.values())
    if not has_value or (setting is None and not is_option):
        return override
    if not value:
        raise ConfigError(f"{name}= has no value; leave it out, or write {name}=null for none")
    takes_texts = is_option or (setting is not None and setting.takes_texts)
    takes_text = _is_one_of(_TEXT_OPTIONS, name) if setting is None else setting.takes_text
    if _is_ready(value) or not (takes_text or takes_texts):
        return f"{key}={value}"
    if _exists(value) or (takes_text and not is_sweep):
        return f"{key}={_quoted(value)}"
    return f"{key}={value if is_sweep else _quote_texts(value)}"


def _quote_texts(value: str) -> str:
    """A text or a list of texts; a comma separates without brackets too."""
    in_brackets = value.startswith("[") and value.endswith("]")
    if not in_brackets and (value.startswith("{") or "," not in value):
        return value if value.startswith("{") or _PLAIN.fullmatch(value) else _quoted(value)
    parts = [part.strip() for part in _split_at_commas(value[1:-1] if in_brackets else value)]
    # Braces are a set of options, which Hydra reads.
    taken = [part if part.startswith("{") or _is_ready(part) or _PLAIN.fullmatch(part) else _quoted(part) for part in parts if part]
    return "[" + ",".join(taken) + "]"


def _split_at_commas(text: str) -> list[str]:
    """Splits at commas outside quotes and brackets."""
    parts, depth, start, position = [], 0, 0, 0
    while position < len(text):
        quoted = _QUOTED.match(text, position) if text[position] in "'\"" else None
        if quoted:
            position = quoted.end()
            continue
        depth += (text[position] in "[({") - (text[position] in "])}")
        if text[position] == "," and depth <= 0:
            parts.append(text[start:position])
            start = position + 1
        position += 1
    return [*parts, text[start:]]


def _is_ready(value: str) -> bool:
    return value.lower() == "null" or value == "???" or _QUOTED.fullmatch(value) is not None


def _exists(value: str) -> bool:
    try:
        return len(value) < 4096 and not value.isdigit() and Path(value).exists()
    except (OSError, ValueError):
        return False


def _quoted(value: str) -> str:
    escaped = re.sub(r"(\\*)'", lambda match: match.group(1) * 2 + "\\'", value)
    trailing = len(escaped) - len(escaped.rstrip("\\"))
    return f"'{escaped}{chr(92) * trailing}'"
