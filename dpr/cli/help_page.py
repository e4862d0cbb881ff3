"""The help page of a command, from the declarations of its settings."""

from __future__ import annotations

import inspect
import shutil
import textwrap
from dataclasses import fields
from pathlib import Path

from dpr.cli.keys import group_options
from dpr.core.compute_settings import CudaSettings, ForwardSettings
from dpr.core.errors import ConfigError
from dpr.core.settings import Setting, sections, settings, suggestion, type_name

_HELP = """
Flags
  --help=all            show all settings; --help=SECTION: those of one section
  -q, -v                log only warnings, or more than usual, on standard error
"""
_FLAGS_OF_WORDS = f"""{_HELP}  --key value           the same as key=value; --key alone is key=true
"""
_FLAGS_OF_FILES = f"""{_HELP}  --cfg job             print the composed configuration instead of running
  --config-dir FOLDER   also look for configuration files in FOLDER
"""


def help_text(program: str, config_class: type, folder: Path | None, part: str = "all") -> str:
    """Returns the help page.

    Args:
        folder: folder of the config groups, for a command that has them.
        part: all, a key or section, or first: the settings that the class names in ``FIRST``, or all if it
            names none.

    Raises:
        ConfigError: there is no such section.
    """
    width = min(shutil.get_terminal_size((120, 24)).columns, 140)
    entries = settings(config_class)
    names = sections(config_class)
    words = [entry for entry in entries if entry.rule.operand]
    usage = " ".join([program, *(entry.rule.operand for entry in words), "[key=value ...]"])
    parts = [f"Usage: {usage}\n"]
    for text in inspect.cleandoc(config_class.__doc__ or "").split("\n\n"):
        parts.append(textwrap.fill(" ".join(text.split()), width) + "\n")
    if part == "first" and (first := getattr(config_class, "FIRST", "").split()):
        entries = [entry for entry in entries if entry.key in first]
        parts.append("Main settings; --help=all lists the rest\n")
    elif part not in ("first", "all"):
        entries = [entry for entry in entries if f"{entry.key}.".startswith(f"{part}.")]
        if not entries:
            raise ConfigError(f"--help={part}: no such section or setting{suggestion(part, names)}")
    # The line on where a command computes follows the description.
    last = {item.name for item in (*fields(ForwardSettings), *fields(CudaSettings))}
    # Config groups for which this job has a section or a catalogue.
    groups = {}
    for name in dict.fromkeys(entry.key.partition(".")[0] for entry in entries):
        if folder and (options := group_options(name, [folder])):
            groups[name] = options
    if groups:
        first = next(iter(groups))
        parts.append(f"Groups: files of settings, chosen by name, e.g. {first}={groups[first][0]}")
        parts += [_row(f"{group}=", ", ".join(options), width) for group, options in groups.items()]
        parts.append("")
    parts += [_row(entry.rule.operand, entry.doc, width) for entry in words] + [""] * bool(words)
    for name, section in names.items():
        inside = [entry for entry in entries if entry.key.rpartition(".")[0] == name and entry not in words]
        if not inside:
            continue
        inside.sort(key=lambda entry: entry.key in last)
        doc = " ".join((section.__doc__ or "").split())
        parts.append(f"{name}: {doc}" if name and doc else name or "Settings")
        parts += [_describe(entry, width) for entry in inside]
        parts.append("")
    for entry in entries:
        if entry.rule.entries is not None:
            parts.append(f"{entry.key}.NAME: {' '.join((entry.rule.entries.__doc__ or '').split())}")
            parts += [
                _describe(option, width) for option in settings(entry.rule.entries, f"{entry.key}.NAME.")
            ]
            parts.append("")
    text = "\n".join(parts).replace("``", "").rstrip() + "\n"
    text += _FLAGS_OF_WORDS if folder is None else _FLAGS_OF_FILES
    if examples := getattr(config_class, "EXAMPLES", ""):
        text += f"\nExamples\n{textwrap.indent(examples, '  ')}"
    return text


def _describe(entry: Setting, width: int) -> str:
    rule = entry.rule
    default = "null" if entry.default is None else str(entry.default)
    value = "" if entry.is_open else f"={default.lower() if isinstance(entry.default, bool) else default}"
    kind = (
        "|".join([*rule.choices, *["module:Class"] * rule.or_class])
        if rule.choices
        else type_name(entry.type)
    )
    details = ", ".join(
        filter(None, [kind, rule.unit, rule.range, f"also {', '.join(rule.also)}" if rule.also else ""])
    )
    return _row(f"{entry.key}{value}", f"({details}) {entry.doc}".rstrip(), width)


def _row(left: str, right: str, width: int) -> str:
    column = 46
    lines = textwrap.wrap(right, max(30, width - column)) or [""]
    first = f"  {left:<{column - 3}} " if len(left) < column - 2 else f"  {left}\n{' ' * column}"
    return first + f"\n{' ' * column}".join(lines)
