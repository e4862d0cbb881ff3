"""``dpr merge``: weights averaged between a base model and a tuned one, or the mean of several models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dpr.core.distributed import resolve_device
from dpr.core.errors import ConfigError, InputError
from dpr.evaluation.ranking_metrics import validated_names
from dpr.export.settings import MergeConfig
from dpr.export.towers import merged
from dpr.formats.checkpoints import write_json_file
from dpr.models.biencoder import BiEncoder
from dpr.models.folders.layouts import BACKBONE, layout_of
from dpr.models.settings import EncoderSettings
from dpr.models.sources import local_model
from dpr.retrieval.suites import read_suite
from dpr.storage.checksums import cache_root
from dpr.storage.durable import durable_folder
from dpr.storage.outputs import output
from dpr.training.validations.protocol import run_validations
from dpr.training.validations.retrieval import RetrievalValidation, RetrievalValidationSettings

PROVENANCE = "merge.json"


def run(config: MergeConfig) -> None:
    """Prints the metric of each candidate and writes the best; among equals, the first, which is nearest to
    the base."""
    models = _opened(config)
    weights = [{name: tensor.clone() for name, tensor in each.weights().items()} for each in models.values()]
    fingerprints = {name: each.fingerprint for name, each in models.items()}
    validations = []
    suite = [] if config.set is None else read_suite(config.set, split=config.split, cache=cache_root(None))
    for each in suite:
        options = each.options
        if options.skip_same_id or options.query_prefix or options.passage_prefix or each.qrels is None:
            raise ConfigError(
                f"set: {each.name} has no judgements, or has prefixes or skip_same_id; choose with another"
                " set"
            )
        settings = RetrievalValidationSettings(
            corpus=str(each.corpus),
            questions=str(each.queries),
            qrels=str(each.qrels),
            match="qrels",
            name=each.name,
            prompt=options.prompt,
        )
        validations.append(RetrievalValidation(settings))
        if config.metric not in (known := validations[-1].evaluator.names(validated_names())):
            raise ConfigError(f"metric={config.metric} is not known; choose one of {', '.join(known)}")
    sets = {each.name: each.content() for each in validations}
    count = len(config.tuned)
    grid = [[1 / count] * count]
    if config.base is not None:
        grid = [[*[weight / count] * count, 1 - weight] for weight in sorted(config.weights)]

    out = Path(str(config.out))
    model = models["tuned1"]
    model.to(resolve_device(config.device))
    made_of = {"models": fingerprints, "weights": grid, "set": sets, "metric": config.metric}
    with output(out, made_of, overwrite=None) as is_missing:
        if not is_missing:
            return
        candidates = []
        for shares in grid:
            candidate: dict[str, Any] = {"weights": dict(zip(models, shares, strict=True))}
            if validations:
                model.load_weights(mixed(weights, shares), source=out)
                metrics = run_validations(validations, model)
                values = [metrics[f"eval/{each.name}/{config.metric}"] for each in validations]
                metrics[config.metric] = sum(values) / len(values)
                print(f"{_shown(candidate['weights'])}: {config.metric} {metrics[config.metric]:.4f}")
                candidate["metrics"] = metrics
            candidates.append(candidate)
        best = max(candidates, key=lambda each: each.get("metrics", {}).get(config.metric, 0))
        print(f"{out}: {_shown(best['weights'])}")
        model.load_weights(mixed(weights, list(best["weights"].values())), source=out)
        provenance = best | {"models": fingerprints, "metric": config.metric, "candidates": candidates}
        with durable_folder(out, metadata={"kind": "model", "made_of": made_of}) as folder:
            model.write_to(folder)
            write_json_file(folder, PROVENANCE, provenance)


def _shown(shares: dict[str, float]) -> str:
    return " + ".join(f"{share:.3g} x {name}" for name, share in shares.items())


def _opened(config: MergeConfig) -> dict[str, BiEncoder]:
    """Opens the models by their names, with adapters merged into the weights.

    Raises:
        InputError: two of them differ in more than their weights.
    """
    models: dict[str, BiEncoder] = {}
    paths = {f"tuned{number}": path for number, path in enumerate(config.tuned, 1)}
    for name, path in (paths | {"base": config.base} if config.base else paths).items():
        first = models.get("tuned1")
        folder = local_model(path)
        if first is None or layout_of(folder)[0] is not BACKBONE:
            model = merged(BiEncoder.load(folder, **config.encoder.arguments()))
        elif first.settings.projection_dim:
            raise InputError("has no projection; it was new in training", file=path)
        else:  # it does not say how it is used: as a run begins with it
            model = BiEncoder.from_pretrained(str(folder), first.settings)
        models[name] = model
        ours = _shape(models["tuned1"])
        theirs = _shape(model)
        for key in ours | theirs:
            if ours.get(key) != theirs.get(key):
                found = f"its {key} is {theirs.get(key)!r}, that of {config.tuned[0]} is {ours.get(key)!r}"
                raise InputError(found, file=path, expected="a model that differs in its weights alone")
    return models


def _shape(model: BiEncoder) -> dict[str, Any]:
    """Returns what two models must have in common. The entries that explain most differences come first."""
    shape = {"architecture": model.question_model.config.model_type} | asdict(EncoderSettings())
    shape |= model.settings.as_dict() | {"tokenizer's fingerprint": model.tensorizer.fingerprint}
    tensors = {f"shape of {name}": tuple(tensor.shape) for name, tensor in model.weights().items()}
    return shape | {name: shape for name, shape in tensors.items() if "log_temperature" not in name}


def mixed(models: Sequence[Mapping[str, Tensor]], shares: Sequence[float]) -> dict[str, Tensor]:
    """Returns the sum of weights by their shares, in float64. Models without a share are left out; a model
    with the whole share keeps its bits."""
    parts = [(weights, share) for weights, share in zip(models, shares, strict=True) if share]
    return {
        name: reduce(torch.add, [weights[name].double() * share for weights, share in parts]).to(tensor.dtype)
        for name, tensor in parts[0][0].items()
        if all(name in weights for weights, _ in parts)  # not a temperature that one alone has learned
    }
