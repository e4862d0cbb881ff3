"""What ``--help`` prints: every setting with its default and its meaning, from the dataclasses, without starting Hydra."""

from __future__ import annotations

import shutil
import textwrap
from pathlib import Path

from dpr.cli.keys import group_options
from dpr.core.settings import Setting, sections, settings, type_name

_HELP = """
Flags
  --help                this text
"""
_FLAGS = f"""{_HELP}  --cfg job             print the composed configuration instead of running
  -m, --multirun        run once for every combination of comma-separated values
  --config-dir FOLDER   look for configuration files there as well
  --hydra-help          all flags of the configuration system
"""


def help_text(program: str, config_class: type, folder: Path | None) -> str:
    """The whole help page; ``folder``: that of the config groups, for a command that has them."""
    width = min(shutil.get_terminal_size((120, 24)).columns, 140)
    entries, names = settings(config_class), sections(config_class)
    words = [entry for entry in entries if entry.rule.operand]
    usage = " ".join([program, *(entry.rule.operand for entry in words), "[key=value ...]"])
    parts = [f"Usage: {usage}\n", *(textwrap.fill(" ".join(text.split()), width) + "\n" for text in names[""].split("\n\n"))]
    # Config groups that this job has a section or a catalogue for.
    places = [name for name in [*names, *(entry.key for entry in entries)] if folder and name and (folder / name).is_dir()]
    if groups := {group: options for group in places if folder and (options := group_options(group, [folder]))}:
        first = next(iter(groups))
        parts.append(f"Groups: a file of settings chosen by name, e.g. {first}={groups[first][0]}")
        parts += [_row(f"{group}=", ", ".join(options), width) for group, options in groups.items()]
        parts.append("")
    parts += [_row(entry.rule.operand, entry.doc, width) for entry in words] + [""] * bool(words)
    for name, doc in names.items():
        inside = [entry for entry in entries if entry.key.rpartition(".")[0] == name and entry not in words]
        parts.append(f"{name or 'Settings'}" + (f": {' '.join(doc.split())}" if name and doc else ""))
        parts += [_describe(entry, width) for entry in inside]
        parts.append("")
    for catalogue, options in ((entry.key, entry.entries) for entry in entries if entry.entries is not None):
        parts.append(f"{catalogue}.NAME: {' '.join((options.__doc__ or '').split())}")
        parts += [_describe(option, width) for option in settings(options, f"{catalogue}.NAME.")]
        parts.append("")
    examples = f"\nExamples\n{textwrap.indent(text, '  ')}" if (text := getattr(config_class, "EXAMPLES", "")) else ""
    flags = _HELP + "  --key value           the same as key=value; of a switch, --key is key=true\n" if folder is None else _FLAGS
    more = f"\n{config_class.more_help()}" if hasattr(config_class, "more_help") else ""
    return "\n".join(parts).replace("``", "").rstrip() + "\n" + flags + examples + more


def _describe(entry: Setting, width: int) -> str:
    rule, default = entry.rule, "null" if entry.default is None else str(entry.default)
    value = "" if entry.is_open else f"={default.lower() if isinstance(entry.default, bool) else default}"
    kind = "|".join([*rule.choices, *["module:Class"] * rule.or_class]) if rule.choices else type_name(entry.type)
    facts = ", ".join(filter(None, [kind, rule.unit, rule.range, f"also {', '.join(rule.also)}" if rule.also else ""]))
    return _row(f"{entry.key}{value}", f"({facts}) {entry.doc}".rstrip(), width)


def _row(left: str, right: str, width: int) -> str:
    column = 46
    lines = textwrap.wrap(right, max(30, width - column)) or [""]
    first = f"  {left:<{column - 3}} " if len(left) < column - 2 else f"  {left}\n{' ' * column}"
    return first + f"\n{' ' * column}".join(lines)
