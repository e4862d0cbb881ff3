"""``dpr verify``: are the files of an output the ones that were written?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dpr.core.errors import ConfigError
from dpr.core.settings import Settings, setting

_MOST_NAMED = 200


@dataclass
class VerifySettings(Settings):
    """Compares every file of a folder with the size and SHA-256 in its manifest.json. In a folder without
    one, such as that of a run, it checks all parts that have one or should have one, and the files that have
    a NAME.sha256 beside them; it lists the files that have no checksum. Of a run, run.json states what it and
    the JSON files beside it hold, and what metrics.jsonl held at the last checkpoint. Exits with 3 when a
    file differs, or when no file has a checksum."""

    paths: list[str] = setting(list, operand="PATH ...", path="input")
    """Folders and files that a command wrote."""

    def check_together(self, prefix: str) -> None:
        for name in self.paths:
            if not Path(name).exists():
                raise ConfigError(f"{name}: no such file or folder")


def run(config: VerifySettings) -> int:
    """Prints what is wrong with each path; returns 0 when all are intact, else 3."""
    from dpr.formats.checkpoints import METRICS_LINES, RUN_FILE, run_problems
    from dpr.storage.checksums import verify_file
    from dpr.storage.durable import verify_folder

    is_whole = True
    for path in map(Path, config.paths):
        parts = _parts(path) if path.is_dir() else [path]
        for part in parts:
            problems = verify_folder(part) if part.is_dir() else verify_file(part)
            print(
                f"{part}: good" if not problems else "\n".join(f"{part}: {problem}" for problem in problems)
            )
            is_whole = is_whole and not problems
        for run in sorted(path.rglob(RUN_FILE)):
            for name, problems in run_problems(run.parent).items():
                good = "good up to the last checkpoint" if name == METRICS_LINES else "good"
                print("\n".join(f"{run.with_name(name)}: {problem}" for problem in problems or [good]))
                is_whole = is_whole and not problems
                parts.append(run.with_name(name))
        if rest := _rest(path, parts):
            more = f" and {len(rest) - _MOST_NAMED} more" if len(rest) > _MOST_NAMED else ""
            print(f"{path}: no checksum says what these held: {', '.join(rest[:_MOST_NAMED])}{more}")
    return 0 if is_whole else 3


def _parts(folder: Path) -> list[Path]:
    """The folder itself if it has a manifest; else folders in it that have one or should (checkpoints), and
    files with a checksum."""
    from dpr.storage.durable import CHECKSUM

    if (folder / "manifest.json").exists():
        return [folder]
    outputs = {file.parent for file in folder.rglob("manifest.json")} | {
        path for path in folder.glob("*.step*") if path.is_dir()
    }
    files = {note.with_name(note.name.removesuffix(CHECKSUM)) for note in folder.rglob(f"?*{CHECKSUM}")}
    outputs |= {file for file in files if not outputs & set(file.parents)}
    return sorted(path for path in outputs if _is_visible(path, folder)) or [folder]


def _rest(path: Path, parts: list[Path]) -> list[str]:
    """Names of the files in a folder that are in none of its parts."""
    from dpr.storage.durable import CHECKSUM

    known = set(parts)
    files = [
        file
        for file in sorted(path.rglob("*"))
        if file.is_file() and file.suffix != CHECKSUM and _is_visible(file, path)
    ]
    return [str(file.relative_to(path)) for file in files if not known & {file, *file.parents}]


def _is_visible(path: Path, folder: Path) -> bool:
    return not any(part.startswith(".") for part in path.relative_to(folder).parts)
