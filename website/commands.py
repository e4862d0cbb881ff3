"""Pages of commands and settings, from the declarations that ``dpr COMMAND --help=all`` prints too.

Declarations of settings need no other package, so the site is built without torch.
"""

import inspect
import re
import sys
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))

from dpr.cli.main import COMMANDS  # noqa: E402  the clone is found first
from dpr.core.settings import Setting, sections, settings, type_name  # noqa: E402
from dpr.data.settings import DataSetSettings  # noqa: E402
from dpr.models.settings import EncoderSettings, TowerOptions  # noqa: E402
from dpr.training.settings import TrainingSettings  # noqa: E402

SETTINGS_PAGE = "reference/settings.md"


def command_pages() -> dict[str, str]:
    """Returns the Markdown of each page by its path: the list of commands, and one page for each."""
    lines = ["# Commands", ""]
    lines += ["`dpr COMMAND --help=all` prints the same in a terminal.", ""]
    lines += ["| command | what it does |", "|---|---|"]
    pages = {}
    for name, command in COMMANDS.items():
        lines.append(f"| [`dpr {name}`]({name}.md) | {command.about} |")
        pages[f"reference/commands/{name}.md"] = command_page(name, command.settings_class())
    return {"reference/commands/index.md": "\n".join(lines) + "\n", **pages}


def command_page(name: str, config_class: Any) -> str:
    """Returns the page of one command."""
    entries = settings(config_class)
    operands = [entry for entry in entries if entry.rule.operand]
    usage = " ".join(["dpr", name, *(entry.rule.operand for entry in operands), "[key=value ...]"])
    parts = [f"# dpr {name}", f"    {usage}", inspect.cleandoc(config_class.__doc__ or "")]
    parts[2] = "\n\n".join(escaped(paragraph) for paragraph in parts[2].split("\n\n"))
    if examples := getattr(config_class, "EXAMPLES", ""):
        parts += ["## Examples", f"```text\n{inspect.cleandoc(examples)}\n```"]
    parts.append("## Settings")
    parts += [definition(entry, entry.rule.operand) for entry in operands]
    parts += definitions(config_class, [entry for entry in entries if entry not in operands])
    return "\n\n".join(parts) + "\n"


def settings_page() -> str:
    """Returns the page of the settings that Python takes."""
    parts = ["# Settings"]
    parts.append(
        "The models and the trainer take these from Python. Command lines name the same settings as keys:"
        " `train.batch_size=64`."
    )
    for settings_class in (EncoderSettings, TowerOptions, DataSetSettings, TrainingSettings):
        parts += [
            f"## {settings_class.__name__} {anchor(settings_class)}",
            escaped(settings_class.__doc__ or ""),
        ]
        parts += definitions(settings_class, settings(settings_class), prefix=f"{settings_class.__name__}.")
    return "\n\n".join(parts) + "\n"


def definitions(config_class: Any, entries: list[Setting], prefix: str = "") -> list[str]:
    """Returns the settings of a class, each section and each catalogue under a heading of its own."""
    parts = []
    for section, section_class in sections(config_class).items():
        inside = [entry for entry in entries if entry.key.rpartition(".")[0] == section]
        if inside and section:
            heading = f"### {section} {anchor(section_class) if prefix else ''}".rstrip()
            parts += [heading, escaped(section_class.__doc__ or "")]
        parts += [definition(entry, prefix=prefix) for entry in inside]
    for entry in entries:
        if entry.rule.entries is not None:
            parts += [f"### {entry.key}.NAME", escaped(entry.rule.entries.__doc__ or "")]
            parts += [definition(option) for option in settings(entry.rule.entries, f"{entry.key}.NAME.")]
    return parts


def anchor(settings_class: Any) -> str:
    """Returns the mark that makes signatures in the reference link to the heading of a class."""
    return f"{{: #{settings_class.__module__}.{settings_class.__name__} }}"


def definition(entry: Setting, operand: str = "", prefix: str = "") -> str:
    """Returns a setting as a term, with its default, and its help under it. ``prefix`` is for its anchor."""
    rule = entry.rule
    kind = type_name(entry.type)
    if rule.choices:
        kind = " | ".join([*rule.choices, *["module:Class"] * rule.or_class])
    other_names = f"also {', '.join(rule.also)}" if rule.also else ""
    details = ", ".join(detail for detail in (kind, rule.unit, rule.range, other_names) if detail)
    term = f"`{operand or entry.key + default_of(entry)}`"
    if not operand:
        term += f"{{: #{prefix}{entry.key} }}"
    return f"{term} *{escaped(details)}*\n:   {escaped(entry.doc)}"


def default_of(entry: Setting) -> str:
    """Returns the default as a command line has it; nothing for a catalogue, which any key extends."""
    if entry.is_open:
        return ""
    if entry.default is None:
        return "=null"
    return f"={str(entry.default).lower() if isinstance(entry.default, bool) else entry.default}"


def escaped(text: str) -> str:
    """Returns text on one line, with the marks of Markdown escaped outside of code."""
    parts = re.split(r"(``.+?``|`.+?`)", " ".join(text.split()))
    plain = [re.sub(r"([*_<>\[\]|\\])", r"\\\1", part) for part in parts[::2]]
    for number, part in enumerate(plain):
        parts[2 * number] = part
    return "".join(parts)
