"""``repro/*.yaml``: published results, each with its source, and the commands that reproduce them. docs/reproduction.md has the format."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

from dpr.core.errors import ConfigError, InputError, first_line
from dpr.core.settings import check_type
from dpr.formats.yaml_files import read_yaml

INPUTS = "inputs"
"""The stage that fetches or makes what the others read."""
OUT, DATA = "${out}", "${data}"
"""What stays in a command until it is run: the folder to write, and that of local data."""
_VARIABLE = re.compile(r"\$\{([\w/.-]+)\}")
_FAMILY = {"title", "about", "common", "with", "inputs", "stages", "costs", "rows", "mini"}
_ROW, _MINI = {"title", "with", "costs", "numbers"}, {"about", "with", "stages", "numbers"}
Place = tuple[str | int, ...]


@dataclass(frozen=True)
class Number:
    """A figure that a row is to reach."""

    name: str
    source: str
    why: str
    """Why the tolerance, or the band, is what it is."""
    status: str
    read: str = ""
    """FILE:KEY, below the folder of the run."""
    difference: list[str] = field(default_factory=list)
    """In place of ``read``: vectors of the run and others, of which the largest difference of a number is taken."""
    step: int = 0
    """Of a .jsonl: the first line from this step on that has the key."""
    times: float = 1.0
    expected: float | None = None
    tolerance: float = 0.0
    band: list[float] = field(default_factory=list)
    """In place of ``expected`` and ``tolerance``: the least and the most."""
    checked: str = ""
    """Where the figure was looked up."""
    place: Place = ()
    """Of its status in the YAML."""

    @property
    def step_name(self) -> str:
        return "/".join((self.difference or [self.read])[0].removeprefix(f"{OUT}/").split("/")[:2])

    @property
    def stage(self) -> str:
        return self.step_name.partition("/")[0]

    @property
    def is_watched(self) -> bool:
        """Whether a run is stopped as soon as it misses this."""
        return ".jsonl:" in self.read

    def outcome(self, value: float) -> str:
        """OK (all digits that the source states, or in the band), within tolerance, or FAIL."""
        if self.expected is None:
            return "OK" if self.band[0] <= value <= self.band[1] else "FAIL"
        off, digits = abs(value - self.expected), len(repr(self.expected).partition(".")[2])
        if off <= 0.5 * 10**-digits * (1 + 1e-9) and off <= max(self.tolerance, 0.5 * 10**-digits):
            return "OK"
        return "within tolerance" if off <= self.tolerance else "FAIL"

    @property
    def wanted(self) -> str:
        """What is expected, for tables."""
        return f"{self.band[0]:g} to {self.band[1]:g}" if self.expected is None else f"{self.expected!r} +- {self.tolerance:g}"


@dataclass(frozen=True)
class Step:
    """One command of a stage. ``name`` is stage/label, and its folder below that of the run."""

    name: str
    words: list[str]
    """Arguments of ``dpr``, in which the folders of the run and of local data are still variables."""
    processes: int
    after: list[str]
    """Steps whose folders it names."""

    @property
    def stage(self) -> str:
        return self.name.partition("/")[0]

    @property
    def typed(self) -> list[str]:
        """The whole command."""
        return [*(["dpr"] if self.processes == 1 else ["torchrun", f"--nproc-per-node={self.processes}", "-m", "dpr"]), *self.words]


@dataclass(frozen=True)
class Row:
    """One row of the table: what is run and what comes of it."""

    name: str
    title: str
    file: Path
    steps: list[Step]
    numbers: list[Number]
    inputs: dict[str, dict[str, Any]]
    costs: dict[str, dict[str, Any]]

    @property
    def stages(self) -> list[str]:
        return list(dict.fromkeys(step.stage for step in self.steps))

    def of_stages(self, chosen: list[str]) -> list[Step]:
        """The steps of these stages (none = all) that lead to a number, or all of a stage without numbers, and all that they read.

        Raises:
            ConfigError: there is no such stage.
        """
        if unknown := [name for name in chosen if name not in self.stages]:
            raise ConfigError(f"stage={unknown[0]}: {self.name} has {', '.join(self.stages)}")
        wanted = {number.step_name for number in self.numbers if number.stage in (chosen or self.stages)}
        wanted |= {step.name for step in self.steps if step.stage in set(chosen) - {number.stage for number in self.numbers}}
        for step in reversed(self.steps):
            wanted |= set(step.after) if step.name in wanted else set()
        return [step for step in self.steps if step.name in wanted]


def read_rows(folder: Path, *, mini: bool = False, given: Mapping[str, str] | None = None) -> dict[str, Row]:
    """All rows of the YAMLs in a folder by their names; with ``mini``, on the data and with the numbers of their family's small form.

    Args:
        given: variables that take the place of those of the files.

    Raises:
        InputError: a file is not as described; names it and the place.
    """
    rows: dict[str, Row] = {}
    for file in sorted(folder.glob("*.yaml")):
        family = _checked(read_yaml(file), _FAMILY, file, "the file")
        for name, entry in _checked(family.get("rows"), None, file, "rows").items():
            if name in rows:
                raise InputError(f"the row {name} is in {rows[name].file.name}, too", file=file)
            if mini and "mini" not in family:
                continue
            try:
                rows[name] = _row(file, family, str(name), _checked(entry, _ROW, file, f"rows.{name}"), mini=mini, given=given or {})
            except (AttributeError, ConfigError, KeyError, TypeError) as error:
                found = f"rows.{name}: {first_line(error)}"
                raise InputError(found, file=file, expected="what docs/reproduction.md describes") from None
    return rows


def _row(file: Path, family: dict[str, Any], name: str, entry: dict[str, Any], *, mini: bool, given: Mapping[str, str]) -> Row:
    small = _checked(family.get("mini"), _MINI, file, "mini") if mini else {}
    variables = {key: str(value) for part in (family, entry, small) for key, value in (part.get("with") or {}).items()} | dict(given)
    stages: dict[str, Any] = {INPUTS: {}, **_checked(family.get("stages"), None, file, "stages"), **small.get("stages", {})}
    commands = {f"{stage}/{label}": str(line) for stage, lines in stages.items() for label, line in (lines or {}).items()}

    def filled(text: str) -> str:
        return _with_out(_filled(text, variables, file, name), commands)

    entries = {} if mini else {key: {"step": "files", "get": "", **value} for key, value in family.get("inputs", {}).items()}
    inputs = {key: {part: filled(text) if isinstance(text, str) else text for part, text in each.items()} for key, each in entries.items()}
    steps: list[Step] = []
    for step, line in commands.items():
        text = _filled(line, {**variables, "to": f"${{{step}}}"}, file, f"stages.{step}")
        read = [] if step.startswith(f"{INPUTS}/") else [entry for key, entry in inputs.items() if _names(text, key, entry["file"])]
        brought = [f"{INPUTS}/{entry['step']}" for entry in read]
        after = [other for other in dict.fromkeys([*brought, *_VARIABLE.findall(text)]) if other in commands and other != step]
        if late := [other for other in after if other not in [earlier.name for earlier in steps]]:
            raise InputError(f"stages.{step} reads {late[0]}, which comes after it", file=file)
        words, processes = _dpr_words(_with_out(text, commands), file, step)
        steps.append(Step(step, words, processes, after))
    place: Place = ("mini",) if mini else ("rows", name)
    items = (small if mini else entry).get("numbers", [])
    numbers = [_number(item, file, (*place, "numbers", index)) for index, item in enumerate(items)]
    numbers = [replace(each, read=filled(each.read), difference=[filled(text) for text in each.difference]) for each in numbers]
    if lost := [number.step_name for number in numbers if number.step_name not in commands]:
        raise InputError(f"a number of {name} is of {lost[0]}", file=file, expected=f"a command: {', '.join(commands)}")
    inputs = {key: inputs[key] for step in steps for key in reads(step, inputs)}
    costs = {**family.get("costs", {}), **entry.get("costs", {})}
    return Row(name, str(entry.get("title") or family["title"]), file, steps, numbers, inputs, costs)


def _with_out(text: str, commands: Mapping[str, str]) -> str:
    """The text with the folders of steps below that of the run."""
    return _VARIABLE.sub(lambda found: f"{OUT}/{found[1]}" if found[1] in commands else found[0], text)


def _names(text: str, key: str, path: str) -> bool:
    return bool(re.search(rf"(?<![\w./-]){re.escape(key)}(?![\w/-])|{re.escape(path)}(?![\w.-])", text))


def reads(step: Step, inputs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Names of the inputs that a step reads."""
    text = " ".join(step.words)
    return [key for key, entry in inputs.items() if step.stage != INPUTS and _names(text, key, entry["file"])]


def _filled(text: str, variables: Mapping[str, str], file: Path, where: str, depth: int = 0) -> str:
    """The text with its variables put in, as deep as they go; folders of steps and what the run knows stay."""

    def value(found: re.Match[str]) -> str:
        key = found[1]
        if key in variables:
            return _filled(variables[key], variables, file, where, depth + 1)
        if "/" in key or found[0] in (OUT, DATA):
            return found[0]
        raise InputError(f"{where}: ${{{key}}} is not a variable", file=file, expected=f"one of {', '.join(variables)}")

    if depth > len(variables):
        raise InputError(f"{where}: a variable stands in its own value", file=file)
    return _VARIABLE.sub(value, text)


def _dpr_words(text: str, file: Path, step: str) -> tuple[list[str], int]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InputError(f"stages.{step}: {error}", file=file) from None
    if words[:1] == ["dpr"] and len(words) > 1:
        return words[1:], 1
    count = re.fullmatch(r"--nproc-per-node=(\d+)", words[1]) if len(words) > 4 else None
    if words[:1] == ["torchrun"] and count and words[2:4] == ["-m", "dpr"]:
        return words[4:], int(count[1])
    expected = "dpr COMMAND ... or torchrun --nproc-per-node=N -m dpr COMMAND ..."
    raise InputError(f"stages.{step} is {text[:60]!r}", file=file, expected=expected)


def _number(item: Any, file: Path, place: Place) -> Number:
    where = ".".join(map(str, place))
    hints = get_type_hints(Number)
    needed = [entry.name for entry in fields(Number) if entry.default is MISSING and entry.default_factory is MISSING]
    entry = _checked(item, set(hints) - {"place"}, file, where)
    if missing := [key for key in needed if key not in entry]:
        raise InputError(f"{where} has no {missing[0]}", file=file)
    for key, value in entry.items():
        check_type(f"{where}.{key}", value, hints[key])
    number = Number(**entry, place=(*place, "status"))
    if bool(number.difference) == bool(number.read) or (number.expected is None) != (len(number.band) == 2):
        expected = "one of read: FILE:KEY and difference: [A, B], and one of expected and band: [LEAST, MOST]"
        raise InputError(where, file=file, expected=expected)
    number.outcome(0.0)  # both ends of a band are numbers
    return number


def _checked(value: Any, known: set[str] | None, file: Path, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{where} is not a mapping", file=file)
    if known is not None and (unknown := [key for key in value if key not in known]):
        raise InputError(f"{where} has {unknown[0]}", file=file, expected=", ".join(sorted(known)))
    return value
