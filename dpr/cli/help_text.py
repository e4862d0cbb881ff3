"""What ``--help`` prints: every setting with its default and its meaning, from the dataclasses, without starting Hydra."""

from __future__ import annotations

import shutil
import textwrap
from pathlib import Path

from dpr.cli.conf_folder import group_options
from dpr.core.settings import Setting, sections, settings, type_name

_FLAGS = """
Flags
  --help                this text
  --cfg job             print the composed configuration instead of running
  -m, --multirun        run once for every combination of comma-separated values
  --config-dir FOLDER   look for configuration files there as well
  --hydra-help          all flags of the configuration system
"""


def help_text(program: str, config_class: type, folder: Path) -> str:
    """The whole help page."""
    width = min(shutil.get_terminal_size((120, 24)).columns, 140)
    entries, names = settings(config_class), sections(config_class)
    parts = [f"Usage: {program} [key=value ...]\n", textwrap.fill(names[""], width) + "\n"]
    # Config groups that this job has a section or a catalogue for.
    places = [name for name in [*names, *(entry.key for entry in entries)] if name and (folder / name).is_dir()]
    if groups := {group: options for group in places if (options := group_options(group, [folder]))}:
        first = next(iter(groups))
        parts.append(f"Groups: a file of settings chosen by name, e.g. {first}={groups[first][0]}")
        parts += [_row(f"{group}=", ", ".join(options), width) for group, options in groups.items()]
        parts.append("")
    for name, doc in names.items():
        inside = [entry for entry in entries if entry.key.rpartition(".")[0] == name]
        parts.append(f"{name or 'Settings'}" + (f": {' '.join(doc.split())}" if name and doc else ""))
        parts += [_describe(entry, width) for entry in inside]
        parts.append("")
    for catalogue, options in ((entry.key, entry.entries) for entry in entries if entry.entries is not None):
        parts.append(f"{catalogue}.NAME: {' '.join((options.__doc__ or '').split())}")
        parts += [_describe(option, width) for option in settings(options, f"{catalogue}.NAME.")]
        parts.append("")
    return "\n".join(parts).replace("``", "").rstrip() + "\n" + _FLAGS


def _describe(entry: Setting, width: int) -> str:
    rule, default = entry.rule, "null" if entry.default is None else str(entry.default)
    value = "" if entry.is_open else f"={default.lower() if isinstance(entry.default, bool) else default}"
    kind = "|".join([*rule.choices, *["module:Class"] * rule.or_class]) if rule.choices else type_name(entry.type)
    facts = ", ".join(filter(None, [kind, rule.unit, rule.range]))
    return _row(f"{entry.key}{value}", f"({facts}) {entry.doc}".rstrip(), width)


def _row(left: str, right: str, width: int) -> str:
    column = 46
    lines = textwrap.wrap(right, max(30, width - column)) or [""]
    first = f"  {left:<{column - 3}} " if len(left) < column - 2 else f"  {left}\n{' ' * column}"
    return first + f"\n{' ' * column}".join(lines)
