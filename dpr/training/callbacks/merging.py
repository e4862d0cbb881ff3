"""``train.merge_with_base``: the models between the start of a run and its best checkpoint, each measured by the validations of the run."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from dpr.core.distributed import barrier, on_main
from dpr.core.errors import ConfigError
from dpr.formats.checkpoints import CONFIG_FILE, MODEL_FILE, STATE_FILE, read_tensors, write_json_file
from dpr.storage.durable import append_jsonl, durable_folder, read_json, read_manifest, writing
from dpr.training.metrics import Metrics
from dpr.training.run import Run

CANDIDATES = "merge.jsonl"
WEIGHTS = tuple(tenth / 10 for tenth in range(1, 10))
Weights = Mapping[str, Tensor]
Values = Mapping[str, Sequence[float]]
"""By metric, the value of every question."""


class Measured(NamedTuple):
    """What validations found of a model; ``values``, those of single questions, on rank 0 alone."""

    metrics: Metrics
    values: Values


def mixed(models: Sequence[Weights], shares: Sequence[float]) -> dict[str, Tensor]:
    """The sum of weights by their shares, in float64. Models without a share are left out: one that is all of it keeps its bits."""
    (first, part), *others = [(weights, share) for weights, share in zip(models, shares, strict=True) if share]
    return {
        name: sum((weights[name].double() * share for weights, share in others), tensor.double() * part).to(tensor.dtype)
        for name, tensor in first.items()
    }


def between(ends: Sequence[Weights], weight: float) -> dict[str, Tensor]:
    """Of a start and what it was tuned to, ``weight`` of the latter. A new adapter is the product of two matrices of which the second is
    zero, so that its first may be that of the tuned one: the product is then scaled as weights are."""
    start, tuned = ends
    return mixed([tuned, {name: tuned[name] if "lora_A" in name else tensor for name, tensor in start.items()}], (weight, 1 - weight))


def require_base(run: Run, *, is_validated: bool) -> None:
    """Raises ConfigError where the start of a run cannot be merged with what comes of it."""
    key = "train.merge_with_base=true, but"
    if not is_validated:
        raise ConfigError(f"{key} this run has no validation that could choose; set dev_datasets or train.validation")
    if run.model.is_random:
        raise ConfigError(f"{key} this run starts from random weights, which are no base; leave it out, or name a model_file")
    if any("lora_B" in name and bool(tensor.any()) for name, tensor in run.model.weights().items()):
        raise ConfigError(f"{key} the adapters that this run starts from are trained already; leave it out, and run dpr merge afterwards")


def measure_between(run: Run, folders: Mapping[float, str], measure: Callable[[float], Measured]) -> dict[float, Measured]:
    """By the weight of what was tuned, the mixtures of the checkpoints ``folders`` at weight 0 and 1, put into the run's model one after
    another; what a process that was killed has measured is not measured again. The model then is that of the last checkpoint. All ranks
    call it together."""
    file, of = run.output_dir / CANDIDATES, _fingerprints(run, folders)
    known = {}
    for line in file.read_bytes().splitlines() if file.is_file() else ():
        with suppress(ValueError):  # torn by a kill
            stored = json.loads(line)
            if stored["of"] == of:
                numbers = {name: math.nan if value is None else value for name, value in stored["metrics"].items()}
                known[stored["weight"]] = Measured(numbers, stored["values"])
    barrier()  # all have read what rank 0 is about to add to
    missing = [weight for weight in WEIGHTS if weight not in known]
    ends = _ends(run, folders) if missing else []
    for weight in missing:
        run.model.load_weights(between(ends, weight), source=run.output_dir)
        known[weight] = now = measure(weight)
        on_main(partial(_add, file, {"weight": weight, "of": of, **now._asdict()}))
    if missing:
        last = run.output_dir / f"{run.settings.checkpoint_file_name}.step{run.progress.step}"
        run.model.load_weights(read_tensors(last, MODEL_FILE), source=last)
    return {weight: known[weight] for weight in WEIGHTS}


def _add(file: Path, line: dict[str, Any]) -> None:
    with writing(file, hint="free some space and rerun the same command; what was measured is kept"):
        append_jsonl(file, line)


def write_merged(run: Run, folder: Path, folders: Mapping[float, str], weight: float, metrics: Metrics) -> None:
    """Writes a mixture as a model folder beside the checkpoints, unless it is there."""
    facts: dict[str, Any] = {"kind": "model", "weight": weight, "of": _fingerprints(run, folders)}
    if folder.is_dir() and read_manifest(folder)["metadata"] == facts:
        return
    tuned = run.output_dir / folders[1.0]
    with durable_folder(folder, overwrite=True, metadata=facts) as temporary:
        run.model.write_to(temporary, between(_ends(run, folders), weight))
        shutil.copyfile(tuned / CONFIG_FILE, temporary / CONFIG_FILE)
        state = read_json(tuned / STATE_FILE)
        write_json_file(temporary, STATE_FILE, {**state, "progress": {**state["progress"], "last_metrics": metrics}})


def _ends(run: Run, folders: Mapping[float, str]) -> list[Weights]:
    return [read_tensors(run.output_dir / folders[end], MODEL_FILE) for end in (0.0, 1.0)]


def _fingerprints(run: Run, folders: Mapping[float, str]) -> list[str]:
    return [read_manifest(run.output_dir / folders[end])["files"][MODEL_FILE]["sha256"] for end in (0.0, 1.0)]
