"""Runs one recipe of ``repro/*.yaml`` as commands of dpr and compares its figures with the published ones
(benchmarks/results/reproduction.md).

Rerun the same line after a kill: finished commands are skipped, the one that was interrupted goes on. Exits
with 1 where a figure fails.
"""

from __future__ import annotations

import argparse
import glob
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

VARIABLE = re.compile(r"\$\{([\w/.-]+)\}")


def read_recipes(folder: Path) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """By the name of a recipe, its family and what it has to itself."""
    families = [yaml.safe_load(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.yaml"))]
    return {name: (family, row or {}) for family in families for name, row in family["rows"].items()}


class Recipe:
    """The commands of a recipe by their names, ``stage/label``, in order, and the numbers that they lead
    to."""

    def __init__(
        self, family: dict[str, Any], row: dict[str, Any], out: Path, *, data: str | None = None
    ) -> None:
        small = family["mini"] if data else {}
        self.variables = {**family.get("with", {}), **row.get("with", {}), **small.get("with", {})}
        self.variables["data"] = data
        self.numbers = (small if data else row).get("numbers", [])
        self.inputs = {} if data else family.get("inputs", {})

        stages = {"inputs": {}, **family["stages"], **small.get("stages", {})}
        lines = {
            f"{stage}/{label}": line
            for stage, labels in stages.items()
            for label, line in (labels or {}).items()
        }
        self.variables |= {step: str(out / step) for step in lines}
        self.commands: dict[str, list[str]] = {}
        self.after: dict[str, set[str]] = {}
        for step, line in lines.items():
            text = self.filled(line, to=str(out / step))
            self.commands[step] = shlex.split(text)
            self.after[step] = {other for other in lines if f"{out / other}" in text and other != step}
            if not step.startswith("inputs/"):
                self.after[step] |= {
                    f"inputs/{entry.get('step', 'files')}" for entry in self.inputs_of(step)
                } & lines.keys()

    def filled(self, text: str, **more: str) -> str:
        """The text with its variables put in, and those that these name."""
        values = {**self.variables, **more}
        while VARIABLE.search(text):
            text = VARIABLE.sub(lambda found: str(values[found[1]]), text)
        return text

    def inputs_of(self, step: str) -> list[dict[str, Any]]:
        """The files from elsewhere that a command names, by their key or their path."""
        text, entries = " ".join(self.commands[step]), []
        for key, entry in self.inputs.items():
            path = self.filled(entry["file"])
            if re.search(rf"(?<![\w./-]){re.escape(key)}(?![\w/-])|{re.escape(path)}(?![\w.-])", text):
                entries.append({**entry, "file": path})
        return entries

    def step_of(self, number: dict[str, Any]) -> str:
        """The command that a number comes from."""
        place = (
            number["difference"][0].removeprefix("${").replace("}", "")
            if "difference" in number
            else number["read"]
        )
        return "/".join(place.split("/")[:2])

    def steps_of(self, stages: list[str]) -> list[str]:
        """The commands of these stages (none: of all) that lead to a number, or all of a stage without
        numbers, and what they read."""
        wanted = {self.step_of(number) for number in self.numbers}
        for stage in stages:
            of_stage = {step for step in self.commands if step.startswith(f"{stage}/")}
            if not of_stage:
                sys.exit(f"error: there is no stage {stage}")
            wanted |= set() if of_stage & wanted else of_stage
        wanted = {step for step in wanted if not stages or step.partition("/")[0] in stages}
        for step in reversed(self.commands):
            if step in wanted:
                wanted |= self.after[step]
        return [step for step in self.commands if step in wanted]


def value_of(recipe: Recipe, number: dict[str, Any], out: Path) -> float | None:
    """The figure in the files of a run; None where it is not there yet."""
    if "difference" in number:
        own, others = map(recipe.filled, number["difference"])
        return largest_difference(own, others) if glob.glob(own) and glob.glob(others) else None
    name, _, key = recipe.filled(number["read"]).partition(":")
    if not (out / name).is_file():
        return None
    text = (out / name).read_text(encoding="utf-8")
    if name.endswith(".jsonl"):
        lines = [json.loads(line) for line in text.splitlines()]
        value = next(
            (
                line[key]
                for line in lines
                if line.get("step", -1) >= number.get("step", 0) and line.get(key) is not None
            ),
            None,
        )
    else:
        value = json.loads(text)
        for part in key.split("."):
            value = value[part]
    return None if value is None else number.get("times", 1.0) * float(value)


def largest_difference(own: str, others: str) -> float:
    """Of a number of the vectors, shards or files of the original. What stands before the colon of an id
    (wiki:1) does not count."""
    import numpy as np

    from dpr.formats.original.vectors import PickledVectors
    from dpr.formats.vector_shards import VectorShard

    def vectors(pattern: str) -> Iterator[tuple[bytes, Any]]:
        files = [Path(name) for name in glob.glob(pattern)]
        is_original = all(file.is_file() for file in files)
        for shard in map(PickledVectors if is_original else VectorShard, files):
            for ids, block in shard.chunks():
                for key, vector in zip(ids.tolist(), block, strict=True):
                    yield key.rpartition(b":")[2], vector

    mine = dict(vectors(own))
    differences = [float(np.abs(vector - mine[key]).max()) for key, vector in vectors(others) if key in mine]
    if len(differences) < len(mine):
        sys.exit(f"error: {others}: {len(mine) - len(differences)} of {len(mine)} passages are not there")
    return max(differences)


def outcome(number: dict[str, Any], value: float) -> str:
    """OK (all digits that the source states, or in the band), within tolerance, or FAIL."""
    if "band" in number:
        least, most = number["band"]
        return "OK" if least <= value <= most else "FAIL"
    off = abs(value - number["expected"])
    half_a_digit = 0.5 * 10 ** -len(repr(float(number["expected"])).partition(".")[2])
    if off <= half_a_digit * (1 + 1e-9):
        return "OK"
    return "within tolerance" if off <= number.get("tolerance", 0.0) else "FAIL"


def compared(recipe: Recipe, stage: str, out: Path) -> bool:
    """Prints the numbers of a stage; whether none fails."""
    is_good = True
    for number in recipe.numbers:
        if recipe.step_of(number).startswith(f"{stage}/"):
            wanted = (
                "{} to {}".format(*number["band"])
                if "band" in number
                else f"{number['expected']} +- {number.get('tolerance', 0)}"
            )
            value = value_of(recipe, number, out)
            result = "not reached" if value is None else outcome(number, value)
            print(
                f"{stage}: {number['name']}: expected {wanted} ({number['source']}), found {value}: {result}",
                flush=True,
            )
            is_good &= result != "FAIL"
    return is_good


def run(recipe: Recipe, steps: list[str], out: Path) -> int:
    """Runs the commands and compares after each stage, up to one whose numbers fail; returns the exit
    code."""
    out.mkdir(parents=True, exist_ok=True)
    record = out / "done.json"
    done = json.loads(record.read_text()) if record.is_file() else {}
    for stage in dict.fromkeys(step.partition("/")[0] for step in steps):
        for step in steps:
            command = recipe.commands[step]
            if not step.startswith(f"{stage}/") or done.get(step) == command:
                continue
            for entry in recipe.inputs_of(step):
                if entry.get("get") and not glob.glob(entry["file"]):
                    sys.exit(f"error: {entry['file']} is not there; get it: {entry['get']}")
            print(f"\n{step}\n$ {shlex.join(command)}", flush=True)
            module = "torch.distributed.run" if command[0] == "torchrun" else command[0]
            if code := subprocess.run([sys.executable, "-m", module, *command[1:]]).returncode:
                return code
            done[step] = command
            record.write_text(json.dumps(done, indent=1))
        if not compared(recipe, stage, out):
            return 1
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="of a recipe: benchmarks/results/reproduction.md lists them")
    parser.add_argument(
        "--stage",
        action="append",
        default=[],
        help="run this stage and what it reads; may be given several times",
    )
    parser.add_argument(
        "--mini",
        metavar="FOLDER",
        help="run the small form on the data of this folder, with numbers of its own",
    )
    parser.add_argument("--out", type=Path, help="default: runs/repro/NAME")
    parser.add_argument("--dry-run", action="store_true", help="print the commands")
    given = parser.parse_args()
    recipes = read_recipes(Path(__file__).parent)
    if given.name not in recipes:
        parser.error(f"{given.name} is no recipe; choose one of {', '.join(recipes)}")
    out = given.out or Path("runs/repro") / (given.name + ("-mini" if given.mini else ""))
    recipe = Recipe(*recipes[given.name], out, data=given.mini)
    steps = recipe.steps_of(given.stage)
    if not given.dry_run:
        return run(recipe, steps, out)
    print("\n".join(f"{step}: {shlex.join(recipe.commands[step])}" for step in steps))
    return 0


if __name__ == "__main__":
    sys.exit(main())
