"""``dpr merge``: weights between those of a model and of what it was tuned to, or the mean of several, chosen
on dev questions."""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from dpr.core.distributed import resolve_device
from dpr.core.errors import ConfigError, InputError
from dpr.core.logs import get_logger
from dpr.core.machine import launched
from dpr.evaluation.ranking_metrics import RETRIEVAL_COLUMNS, format_table
from dpr.export.adapters import merged
from dpr.export.settings import MergeConfig
from dpr.formats.checkpoints import write_json_file
from dpr.models.biencoder import BiEncoder
from dpr.models.model_folders import is_backbone
from dpr.models.settings import EncoderSettings
from dpr.retrieval.suites import TestSet, read_suite
from dpr.storage.checksums import cache_root
from dpr.storage.durable import json_text
from dpr.storage.leftovers import remove, temporary_beside
from dpr.storage.steps import StepsInOrder, steps_in_order
from dpr.training.metrics import Metrics
from dpr.training.validations.protocol import run_validations
from dpr.training.validations.retrieval import RetrievalValidation
from dpr.training.validations.retrieval_settings import RetrievalValidationSettings

logger = get_logger(__name__)

CANDIDATES, FACTS = "candidates.jsonl", "merge.json"
Shares = tuple[float, ...]
"""What each model counts; they add up to 1."""


def run(config: MergeConfig) -> None:
    """Writes the model and prints how good each candidate was.

    Raises:
        ConfigError: there is no such metric, or the command was started on several processes.
        InputError: the models differ in more than their weights.
    """
    if launched("WORLD_SIZE") > 1:
        raise ConfigError(
            "models are merged in one process; start it without torchrun (a GPU is used when there is one)"
        )
    names, models = zip(*_opened(config), strict=True)
    sets = [] if config.set is None else read_suite(config.set, split=config.split, cache=cache_root(None))
    validations = [_validation(test_set, config) for test_set in sets]
    fingerprints = [model.fingerprint for model in models]
    made_of: dict[str, Any] = {
        "models": dict(zip(names, fingerprints, strict=True)),
        "weights": config.weights if config.base else None,
    }
    made_of |= {
        "set": {each.name: each.content() for each in validations},
        "metric": config.metric,
        "precision": config.precision,
    }
    out, mixture = Path(str(config.out)), Mixture(models)
    mixture.model.to(resolve_device(config.device))
    with steps_in_order(out, made_of) as steps:
        if steps is None:
            return
        if not steps.is_complete():
            measured = _Measured(steps, mixture, validations, config.metric)
            chosen = _chosen(config, measured if validations else None)
            if validations:
                rows = {_label(names, shares): metrics for shares, metrics in measured.known.items()}
                print(format_table(rows, {config.metric: config.metric} | RETRIEVAL_COLUMNS))
            print(f"{out}: {_label(names, chosen)}")
            mixture.take(chosen)
            facts = {
                "models": made_of["models"],
                "weights": dict(zip(names, chosen, strict=True)),
                "metric": config.metric,
            }
            _write(steps, mixture.model, facts | {"metrics": measured.known.get(chosen)})


def _opened(config: MergeConfig) -> Iterator[tuple[str, BiEncoder]]:
    """The models by the names that they have in messages and files, those that were tuned first; adapters are
    merged into their weights."""
    arguments = config.encoder.arguments()
    first: BiEncoder | None = None
    given = [
        ("tuned" if len(config.tuned) == 1 else f"tuned{number}", path)
        for number, path in enumerate(config.tuned, 1)
    ]
    for name, path in (*given, *([("base", config.base)] if config.base else [])):
        if first is None or (Path(path).exists() and not is_backbone(Path(path))):
            model = merged(BiEncoder.load(path, **arguments))
        elif first.settings.projection_dim:
            raise InputError(
                "has no projection; it was new in training",
                file=path,
                hint="name a model that has one as base",
            )
        else:  # it does not say how it is used: as a run begins with it
            model = BiEncoder.from_pretrained(path, first.settings)
        first = first or model
        require_alike(first, model, config.tuned[0], path)
        yield name, model


def require_alike(one: BiEncoder, other: BiEncoder, first: str, second: str) -> None:
    """Raises InputError where two models differ in more than their weights."""
    ours, theirs = _facts(one), _facts(other)
    for key in ours | theirs:
        if ours.get(key) != theirs.get(key):
            found = f"its {key} is {theirs.get(key)!r}, that of {first} is {ours.get(key)!r}"
            raise InputError(found, file=second, expected="a model that differs in its weights alone")


def _facts(model: BiEncoder) -> dict[str, Any]:
    """What two models must have in common; first what says most about a difference."""
    return {
        "architecture": model.question_model.config.model_type,
        **asdict(EncoderSettings()),
        **model.settings.as_dict(),
        "number of tokens": len(model.tensorizer.tokenizer.get_vocab()),
        "tokenizer's fingerprint": model.tensorizer.fingerprint,
        **{
            f"shape of {name}": tuple(tensor.shape)
            for name, tensor in model.weights().items()
            if name != "log_temperature"
        },
    }


def mixed(models: Sequence[Mapping[str, Tensor]], shares: Sequence[float]) -> dict[str, Tensor]:
    """The sum of weights by their shares, in float64. Models without a share are left out: one that is all of
    it keeps its bits."""
    (first, part), *others = [
        (weights, share) for weights, share in zip(models, shares, strict=True) if share
    ]
    return {
        name: sum((weights[name].double() * share for weights, share in others), tensor.double() * part).to(
            tensor.dtype
        )
        for name, tensor in first.items()
    }


class Mixture:
    """Models that differ in their weights, and ``model``, which takes any mixture of them."""

    def __init__(self, models: Sequence[BiEncoder]) -> None:
        self.model = models[0]
        self._weights = [
            {name: tensor.detach().cpu().clone() for name, tensor in model.weights().items()}
            for model in models
        ]

    def take(self, shares: Shares) -> None:
        """Gives ``model`` the weights of the mixture; its temperature stays."""
        self.model.load_weights(mixed(self._weights, shares), source=Path())


class _Measured:
    """The metrics of mixtures, the mean over the sets, each measured once, be it by a process that was
    killed."""

    def __init__(
        self, steps: StepsInOrder, mixture: Mixture, validations: Sequence[RetrievalValidation], metric: str
    ) -> None:
        self._steps, self._mixture, self._validations, self._metric = steps, mixture, validations, metric
        lines = (steps.folder / CANDIDATES).read_text().splitlines() if steps.num_done else ()
        self.known: dict[Shares, Metrics] = {
            tuple(line["weights"]): line["metrics"] for line in map(json.loads, lines)
        }
        for each in validations:
            if f"eval/{each.name}/{metric}" not in each.names():
                raise ConfigError(
                    f"metric={metric} is not known; choose one of {', '.join(each.judged.names())}"
                )

    def __call__(self, shares: Shares) -> float:
        """The metric that decides."""
        if shares not in self.known:
            self._mixture.take(shares)
            metrics = run_validations(self._validations, self._mixture.model)
            sums = defaultdict[str, float](float)
            for name, value in metrics.items():
                sums[name.rpartition("/")[2]] += value / len(self._validations)
            self.known[shares] = metrics | sums
            with self._steps.appended(CANDIDATES) as out:
                out.write((json_text({"weights": shares, "metrics": self.known[shares]}) + "\n").encode())
            self._steps.commit()
        return self.known[shares][self._metric]


def _chosen(config: MergeConfig, measure: Callable[[Shares], float] | None) -> Shares:
    """The best mixture; of equally good ones that which is nearest to the base."""
    count = len(config.tuned)
    mean = tuple([1 / count] * count)
    if measure is not None and count > 1:
        ends = [tuple(float(number == each) for each in range(count)) for number in range(count)]
        rest = () if config.base is None else (0.0,)
        order = sorted(range(count), key=lambda number: -measure((*ends[number], *rest)))
        kept = order[:1]
        mean = ends[kept[0]]
        for number in order[1:]:
            tried = tuple(float(each in (*kept, number)) / (len(kept) + 1) for each in range(count))
            if measure((*tried, *rest)) >= measure((*mean, *rest)):
                kept, mean = [*kept, number], tried
    if config.base is None:
        return mean
    line = [(*(weight * share for share in mean), 1 - weight) for weight in sorted(config.weights)]
    return line[0] if measure is None else max(line, key=measure)


def _label(names: Sequence[str], shares: Shares) -> str:
    return " + ".join(f"{share:.3g} {name}" for name, share in zip(names, shares, strict=True) if share)


def _validation(test_set: TestSet, config: MergeConfig) -> RetrievalValidation:
    options = test_set.options
    if options.skip_same_id:
        raise ConfigError(
            f"{test_set.name}: skip_same_id=true is for dpr evaluate; choose by a set without it"
        )
    if test_set.qrels is None:
        raise InputError(
            f"{test_set.name}: no judgements to choose by",
            file=test_set.queries,
            expected="qrels/<split>.tsv beside it",
        )
    files: dict[str, Any] = {
        "corpus": str(test_set.corpus),
        "questions": str(test_set.queries),
        "qrels": str(test_set.qrels),
    }
    asked: dict[str, Any] = {
        "prompt": options.prompt,
        "query_prefix": options.query_prefix,
        "passage_prefix": options.passage_prefix or "",
    }
    return RetrievalValidation(
        RetrievalValidationSettings(**files, **asked, match="qrels", name=test_set.name),
        precision=config.precision,
    )


def _write(steps: StepsInOrder, model: BiEncoder, facts: dict[str, Any]) -> None:
    """Finishes the folder with the model and what it is made of, as one step with the manifest."""
    aside = temporary_beside(steps.folder / "model")
    aside.mkdir()
    try:
        model.write_to(aside)
        write_json_file(aside, FACTS, facts)
        for file in sorted(path for path in aside.rglob("*") if path.is_file()):
            with steps.appended(file.relative_to(aside).as_posix()) as out, open(file, "rb") as data:
                shutil.copyfileobj(data, out)
    finally:
        remove(aside)
    steps.finish({"kind": "model"})
