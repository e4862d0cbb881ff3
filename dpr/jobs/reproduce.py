"""``dpr reproduce``: published results, the commands that lead to them, and whether they do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from dpr.core.errors import ConfigError
from dpr.core.settings import Settings, setting

if TYPE_CHECKING:
    from dpr.formats.reproductions import Row

_UNITS = {"hours": "hours", "gpus": "GPUs", "memory_gb": "GB of memory", "disk_gb": "GB of disk"}


@dataclass
class ReproduceSettings(Settings):
    """Runs the commands behind a published result and compares what comes of them; without a name lists all results with their status.
    Rerun the same command to resume. Exits with 1 when a number fails."""

    EXAMPLES: ClassVar[str] = """\
dpr reproduce
dpr reproduce dpr-nq dry_run=true gpu_hour_price=2.5
dpr reproduce dpr-nq stage=bm25
dpr reproduce dpr-nq size=mini data=../shared/data
"""
    row: str | None = setting(None, operand="[NAME]")
    """Name of a row; absent = list all."""
    stage: list[str] = setting(list, takes_words=True, requires="row")
    """Run these stages, and what they read, alone; none = all that lead to a number."""
    size: str = setting("full", choices=("full", "mini"))
    """mini runs the same commands on small data with a small encoder, in minutes, and compares with numbers of its own."""
    data: str | None = setting(None, requires="size=mini")
    """Folder of the data that the small form reads."""
    out: str | None = setting(None, requires="row")
    """Folder to write; absent = runs/repro/<name>, with -mini for the small form."""
    seed: int | None = setting(None, least=0, requires="row")
    """Takes the place of the row's seed."""
    keep_going: bool = setting(False, requires="row")
    """Run the stages after one whose numbers fail, too, and let a training that misses go on."""
    overwrite: bool = setting(False, requires="row")
    """Make a finished stage again where its command or its inputs have changed."""
    dry_run: bool = setting(False, requires="row")
    """Print the commands and what they take, and run nothing."""
    gpu_hour_price: float | None = setting(None, least=0, requires="dry_run")
    """Price of an hour of one GPU, for the estimate."""
    update_status: bool = setting(False, requires="row")
    """Write the date, machine and version into the YAML as the status of each number that was reached."""
    folder: str | None = None
    """Folder of the YAMLs; absent = those of the toolkit."""

    def check_together(self, prefix: str) -> None:
        if self.size == "mini" and self.row and not self.data:
            raise ConfigError("size=mini reads small data: data=FOLDER (docs/reproduction.md says which)")
        for key in ("data", "folder"):
            if (value := getattr(self, key)) is not None and not Path(value).is_dir():
                raise ConfigError(f"{key}={value} does not exist, or is no folder")
        if self.row:
            self.out = self.out or f"runs/repro/{self.row}{'-mini' if self.size == 'mini' else ''}"


def run(config: ReproduceSettings) -> int:
    """Lists the rows, prints what one takes, or runs it; returns 1 when a number fails, else 0."""
    from dpr.core.suggestions import suggestion
    from dpr.formats.reproductions import read_rows

    folder = Path(config.folder) if config.folder else repro_folder()
    given = {} if config.seed is None else {"seed": str(config.seed)}
    rows = read_rows(folder, mini=config.size == "mini", given=given)
    if config.row is None:
        _list(rows)
        return 0
    if (row := rows.get(config.row)) is None:
        raise ConfigError(f"{config.row} is not a row{suggestion(config.row, rows, otherwise='; dpr reproduce lists all')}")
    if config.dry_run:
        _estimate(row, config)
        return 0
    return _reproduce(row, config)


def repro_folder() -> Path:
    """``dpr/repro`` in an installed wheel, else ``repro`` beside the package.

    Raises:
        ConfigError: neither is there.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "repro", package.parent / "repro"):
        if next(folder.glob("*.yaml"), None):
            return folder
    raise ConfigError(f"no {package / 'repro'}; reinstall dpr, or name a folder of YAMLs with folder=")


def _list(rows: dict[str, Row]) -> None:
    for row in rows.values():
        print(f"{row.name}: {row.title}")
        for number in row.numbers:
            print(f"  {number.stage:<12} {number.name:<28} {number.wanted:<18} {number.status}")
    numbers = [number for row in rows.values() for number in row.numbers]
    verified = sum(number.status.startswith("verified") for number in numbers)
    print(f"{len(rows)} rows, {len(numbers)} numbers, {verified} verified. dpr reproduce NAME dry_run=true says what one takes.")


def _estimate(row: Row, config: ReproduceSettings) -> None:
    import shlex

    from dpr.formats.reproductions import DATA, OUT
    from dpr.jobs.doctor import disks, machine

    steps, hours, disk, memory = row.of_stages(config.stage), 0.0, 0.0, 0.0
    print(f"{row.name}: {row.title}")
    for stage in dict.fromkeys(step.stage for step in steps):
        cost: dict[str, Any] = {"from": "minutes on a CPU"} if config.size == "mini" else row.costs.get(stage, {"from": "not known"})
        print(f"\n{stage}: {', '.join([*(f'{cost[key]} {unit}' for key, unit in _UNITS.items() if key in cost), cost['from']])}")
        hours += cost.get("hours", 0) * cost.get("gpus", 0)
        disk += cost.get("disk_gb", 0)
        memory = max(memory, cost.get("memory_gb", 0))
        for step in (step for step in steps if step.stage == stage):
            print("  " + shlex.join(word.replace(OUT, str(config.out)).replace(DATA, str(config.data)) for word in step.typed))
    price = "" if config.gpu_hour_price is None else f", {hours * config.gpu_hour_price:,.0f} at {config.gpu_hour_price:g} a GPU hour"
    print(f"\ntogether: {hours:g} GPU hours{price}; {disk:g} GB of disk; at most {memory:g} GB of memory")
    print(f"this machine: {'; '.join([*machine()[:-1], disks()[0]])}")


def _reproduce(row: Row, config: ReproduceSettings) -> int:
    from dpr.core.errors import InputError, StopRequested
    from dpr.formats.reproduction_figures import missed
    from dpr.formats.reproductions import reads
    from dpr.jobs.ladder.climb import climb
    from dpr.jobs.ladder.process import PassOn
    from dpr.jobs.ladder.reproduction import input_files, ladder_stages, watching
    from dpr.jobs.ladder.stages import Stage
    from dpr.storage.checksums import content_sha256

    out, steps = Path(str(config.out)), row.of_stages(config.stage)
    last = {step.stage: step.name for step in steps}
    numbers = [number for number in row.numbers if number.stage in last]
    for name in {name for step in steps for name in reads(step, row.inputs)}:
        entry = row.inputs[name]
        if entry["get"] and not input_files(row, name)[0].exists():
            raise InputError("is not there", file=entry["file"], hint=f"get it: {entry['get']}")
        if entry.get("sha256") and Path(entry["file"]).is_file() and content_sha256(Path(entry["file"])) != entry["sha256"]:
            raise InputError(f"is not the published {name}: its SHA-256 differs from the one in {row.file}", file=entry["file"])

    watched = [] if config.keep_going else [number for number in numbers if number.is_watched]

    def done(stage: Stage) -> None:
        name = stage.name.partition("/")[0]
        if last[name] == stage.name and not config.keep_going and missed([number for number in numbers if number.stage == name], out):
            raise StopRequested

    try:
        if config.overwrite or not missed(watched, out):  # a training that was stopped for it is not resumed
            with PassOn(), watching(watched, out):
                climb(ladder_stages(row, steps, out, config.data), out, overwrite=config.overwrite, setting="overwrite", done=done)
    except StopRequested:
        if config.keep_going or not missed(numbers, out):
            raise
    return _conclude(row, config, out)


def _conclude(row: Row, config: ReproduceSettings, out: Path) -> int:
    from dpr.formats.reproduction_figures import value_of
    from dpr.jobs.ladder.reproduction_record import RESULT, update_status, write_record

    chosen = {step.stage for step in row.of_stages(config.stage)}
    found = [(number, value_of(number, out)) for number in row.numbers if number.stage in chosen]
    print(f"\n{row.name}: {row.title}\n  {'stage':<12} {'number':<28} {'expected':<18} {'found':<10} outcome")
    for number, value in found:
        outcome = "not reached" if value is None else number.outcome(value)
        print(f"  {number.stage:<12} {number.name:<28} {number.wanted:<18} {'' if value is None else format(value, '.6g'):<10} {outcome}")
    failed = [number for number, value in found if value is not None and number.outcome(value) == "FAIL"]
    write_record(row, {"size": config.size, "seed": config.seed, "stages": sorted(chosen)}, found, out / RESULT)
    if config.update_status:
        update_status(row, [number for number, value in found if value is not None and number not in failed])
    for number in failed:
        print(f"FAIL in the stage {number.stage}: {number.name}. Expected by {number.source}; {number.why}")
    print(f"{out / RESULT}: {len(failed)} of {sum(value is not None for _, value in found)} numbers fail")
    return 1 if failed else 0
