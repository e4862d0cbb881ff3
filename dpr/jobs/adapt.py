"""``dpr adapt CORPUS``: from passages without questions to a retriever that can be searched, with one
command."""

from __future__ import annotations

import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from dpr.core.compute_settings import DeviceSettings
from dpr.core.errors import ConfigError, InputError
from dpr.core.settings import require_set, setting

if TYPE_CHECKING:
    from dpr.jobs.ladder.adaptation import AdaptationPlan

RESULT = "adapted.json"


@dataclass
class AdaptSettings(DeviceSettings):
    """Trains an encoder on pairs cut from a corpus, without labels, and makes the corpus searchable by it and
    BM25 together. Settings and the hybrid's weight are chosen on pseudo-questions of documents held back from
    training. Rerun the same command to resume, and after the corpus has changed: only what has changed is
    made again."""

    EXAMPLES: ClassVar[str] = """\
dpr adapt corpus.jsonl
dpr adapt corpus.tsv out=runs/mine set=data/mine
dpr adapt corpus.jsonl model_file=models/e5-small max_pairs=5000
"""
    corpus: str | None = setting(None, operand="CORPUS", path="input")
    """Passages, in any format that dpr embed reads."""
    out: str | None = setting(None, path="folder")
    """Folder to write; absent = runs/<name of CORPUS>."""
    model_file: str | None = setting(None, path="input")
    """Folder or name of a model to train on; absent = a static encoder, trained from nothing."""
    set: str | None = setting(None, path="input")
    """Real questions with judgements to measure the result on, as dpr evaluate takes them. Nothing is chosen
    by them."""
    teacher: str | None = setting(None, path="input")
    """Folder of a cross-encoder, or of another bi-encoder: the trained encoder then learns its scores of
    mined negatives."""
    pairs: Any = "mixed"
    """Kinds of pairs, as in datasets.<name>.pairs (docs/without_labels.md)."""
    max_pairs: int = setting(0, unit="pairs", least=0)
    """Pairs to train on; 0 = 16 of each passage, from 8,192 to 131,072, or with model_file 4 of each, from
    1,024 to 20,000."""
    seed: int = 0
    """Decides pairs, order and first weights."""
    processes: int = setting(1, unit="processes", least=1)
    """Processes that train and embed together, each on its GPU: 1, 2, 4, 8 or 16. The result is the same but
    for rounding."""

    def check_together(self, prefix: str) -> None:
        require_set(self, {"corpus": "corpus.jsonl"})
        if 16 % self.processes:
            raise ConfigError(
                f"processes={self.processes}, expected 1, 2, 4, 8 or 16, which divide every batch"
            )
        corpus = Path(str(self.corpus))
        self.out = self.out or str(Path("runs") / corpus.name.partition(".")[0])
        if corpus.is_dir():
            raise ConfigError(
                f"{corpus} is a folder: for one of documents, dpr quickstart {corpus}; of BEIR's layout, name"
                " its corpus file"
            )
        for key in ("corpus", "set", "teacher"):
            if (value := getattr(self, key)) is not None and not Path(value).exists():
                raise ConfigError(f"{key}={value} does not exist")


def run(config: AdaptSettings) -> float | None:
    """Runs all stages and prints what came of them. Returns the hybrid's nDCG@10 on the real questions, None
    without any."""
    from dpr.data.pairs import kinds_of
    from dpr.jobs.ladder.adaptation import STATIC, AdaptationPlan, require_own, stages, write_search
    from dpr.jobs.ladder.climb import climb
    from dpr.jobs.ladder.texts import CorpusTexts

    kinds_of(config.pairs, setting="pairs")
    for key in ("model_file", "teacher"):
        require_model(key, getattr(config, key))
    out, start = Path(str(config.out)), time.monotonic()
    plan = AdaptationPlan(
        out,
        CorpusTexts(Path(str(config.corpus)), out),
        config.model_file or STATIC,
        kinds=config.pairs,
        max_pairs=config.max_pairs,
        seed=config.seed,
        device=config.device,
        processes=config.processes,
        teacher=None if config.teacher is None else Path(config.teacher),
    )
    planned = stages(plan)
    require_own(plan, planned)
    climb(planned, out)
    write_search(plan)
    show_choice(plan)
    value = None if config.set is None else _evaluate(plan, config.set)
    print(f"\nIt took {(time.monotonic() - start) / 60:.1f} minutes.\n")
    print(f'Search by hand:   dpr search {shlex.quote(str(out))} "your question"')
    print(f"In a browser:     dpr serve {shlex.quote(str(out))}")
    if config.set is None:
        print(
            f"How good is it?   dpr evaluate run={shlex.quote(str(out))} set=FOLDER, with questions and"
            " judgements of yours"
        )
    return value


def require_model(key: str, name: str | None) -> None:
    """Looks for the model that a setting names before anything is made.

    Raises:
        ConfigError: there is none.
    """
    from dpr.models.pretrained import read_config

    if name is None:
        return
    if Path(name).is_file():
        if key != "teacher":  # which a checkpoint of the original DPR may be
            raise ConfigError(f"{key}={name} is a file, expected a folder, or the name of a model")
    elif Path(name).is_dir():
        if next(Path(name).rglob("*.safetensors"), None) is None:
            raise ConfigError(
                f"{key}={name} holds no model.safetensors, expected the folder of a trained model"
            )
    else:
        try:
            read_config(name)
        except InputError as error:
            raise ConfigError(
                f"{key}={name}: {error.found}; name a folder, or a model that is in the Hugging Face cache"
            ) from error


def show_choice(plan: AdaptationPlan) -> None:
    """What was chosen on the dev questions, and by how much; also written to ``adapted.json``."""
    from dpr.jobs.ladder.adaptation import CLEARLY
    from dpr.storage.durable import write_json

    values, weights, counts = plan.trial_values(), plan.dev_values(), plan.counts()
    asked = (
        f"{counts['pseudo-questions']:,} pseudo-questions"
        if "pseudo-questions" in counts
        else "the dev questions"
    )
    usual, chosen, weight = plan.trials[0].name, plan.chosen(), plan.weight()
    print(f"\nnDCG@10 on {asked}, which choose settings and are no measure of quality:")
    for name, value in values.items():
        compared = (
            f"{value - values[usual]:+.3f}"
            if name != usual
            else f"the usual one; another is taken if it is better by {CLEARLY}"
        )
        print(f"  {value:.3f}  {name}, {compared}{', chosen' if name == chosen.name else ''}")
    line = f"BM25; the encoder {weights[1.0]:.3f}; both {weights[weight]:.3f}, with weight {weight:g}"
    print(f"  {weights[0.0]:.3f}  {line}")
    facts = {
        "pseudo_ndcg@10": {
            "trials": values,
            "bm25": weights[0.0],
            "dense": weights[1.0],
            "hybrid": weights[weight],
        }
    }
    write_json(plan.out / RESULT, {**facts, "chosen": chosen.overrides, "hybrid_weight": weight}, note={})


def _evaluate(plan: AdaptationPlan, given: str) -> float | None:
    """By ``dpr evaluate``, on questions that nothing was chosen by."""
    from dpr.jobs.evaluate import run as evaluate
    from dpr.retrieval.suite_settings import EvaluateConfig

    print("\nOn the questions given:")
    config = EvaluateConfig(run=str(plan.out), set=given, device=plan.device, overwrite=True)
    config.check()
    return evaluate(config)
