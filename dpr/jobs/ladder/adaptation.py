"""``dpr adapt`` and ``dpr quickstart``: trials, training, vectors and the weight of the hybrid, as stages of
public commands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from dpr.core.errors import ConfigError, InputError
from dpr.core.setting_keys import overrides
from dpr.formats.checkpoints import RUN_FILE, is_checkpoint, resolve_checkpoint
from dpr.indexer.settings import DEFAULT_WEIGHT
from dpr.jobs.indexes import index_choice, open_text_index
from dpr.jobs.ladder.stages import Record, Stage, trained_files
from dpr.jobs.ladder.texts import FolderTexts, Texts
from dpr.jobs.sources import resolve_passage_sources
from dpr.preparation import folder_data, pseudo_questions
from dpr.retrieval.search_folder import SearchSettings
from dpr.retrieval.settings import IndexerConfig
from dpr.storage.durable import read_json, read_manifest, remove_folder
from dpr.storage.run_lock import LOCK_FILE

STATIC, TRANSFORMER = "static", "transformer"
SYSTEMS = {"bm25": "BM25", "dense": "trained", "hybrid": "hybrid"}
"""The stages that evaluate on test questions, and their names in tables."""
WEIGHTS = (0.2, 0.6)
"""Bounds of the dense side's share of the hybrid: made questions alone would choose too high a share."""
CLEARLY = 0.02
"""By how much a setting has to be better than the usual one on the dev questions to be taken."""
_DEPTH, _METRIC = 1000, "ndcg@10"
_LEAST_PAIRS, _MOST_PAIRS, _PAIRS_OF_PASSAGE = 8192, 131_072, 16
_WIDEST_MARGIN = 3.0
"""What is learned, in temperatures, for the widest of a teacher's scores."""
_SHARE_OF_TRIALS = 0.0625
"""Of the training pairs, for each trial."""


class Trial(NamedTuple):
    """Settings that are compared on the dev questions before the training."""

    name: str
    overrides: list[str]


_COSINE = [
    Trial(f"cosine, temperature {value}", [f"loss.temperature={value}"]) for value in (0.15, 0.1, 0.05)
]


@dataclass(frozen=True)
class AdaptationPlan:
    """What a command was asked for."""

    out: Path
    texts: Texts
    encoder: str = STATIC
    """static, transformer (one small layer, from nothing), or the folder or name of a trained model."""
    kinds: Any = "mixed"
    max_pairs: int = 0
    """Training pairs, at most; 0 = by the encoder."""
    seed: int = 0
    device: str | None = None
    processes: int = 1
    """That train and embed together; a divisor of the batch, which is the same for any number."""
    teacher: Path | None = None
    """Folder of a cross-encoder or a bi-encoder, from whose scores of mined negatives the encoder learns
    after its training."""

    @property
    def trials(self) -> list[Trial]:
        """What the encoder is tried with, the usual first; one alone is taken without a trial."""
        if self.encoder == STATIC:
            return _COSINE
        return [
            Trial(f"cosine, temperature {value}", [f"loss.temperature={value}"])
            for value in [0.07 if self.encoder == TRANSFORMER else 0.05]
        ]

    def counts(self) -> dict[str, Any]:
        """How much of everything there is, once the texts are prepared."""
        return dict(read_manifest(self.texts.prepared)["metadata"]["counts"])

    def batch(self, size: int) -> list[str]:
        """The settings of a batch of so many pairs of all processes, and of its order."""
        return [
            f"train.batch_size={size // self.processes}",
            f"train.global_batch_size={size}",
            f"seed={self.seed}",
        ]

    def metrics(self, stage: str) -> Path:
        """The metrics file of a stage."""
        return self.out / stage / "metrics.json"

    def trial_values(self) -> dict[str, float]:
        """What each finished trial reached on the dev questions."""
        runs = {trial.name: self.trial_folder(trial) / RUN_FILE for trial in self.trials}
        return {name: float(read_json(file)["best_value"]) for name, file in runs.items() if file.is_file()}

    def trial_folder(self, trial: Trial) -> Path:
        """Where a trial is trained."""
        return self.out / "trials" / f"{self.trials.index(trial) + 1}"

    def chosen(self) -> Trial:
        """The trial whose settings are trained with: the usual one, unless another is clearly better."""
        values, usual = self.trial_values(), self.trials[0]
        best = max(self.trials, key=lambda trial: values.get(trial.name, 0.0))
        return best if len(values) > 1 and values[best.name] > values[usual.name] + CLEARLY else usual

    def dev_values(self) -> dict[float, float]:
        """The metric on the dev questions by the dense side's share of the hybrid: 0 is BM25 alone, 1 the
        encoder."""
        return {
            float(weight): value
            for weight, value in read_json(self.metrics("weight"))["tried_weights"].items()
        }

    def weight(self) -> float:
        """The share nearest to the usual one, of those within bounds that are not clearly worse on the dev
        questions than the best."""
        values = {
            weight: value for weight, value in self.dev_values().items() if WEIGHTS[0] <= weight <= WEIGHTS[1]
        }
        good = [weight for weight, value in values.items() if value >= max(values.values()) - CLEARLY]
        return min(good, key=lambda weight: (abs(weight - DEFAULT_WEIGHT), weight))


def stages(plan: AdaptationPlan) -> list[Stage]:
    """All stages, in order.

    Raises:
        InputError: a folder of documents does not exist or holds none.
    """
    return _Builder(plan).build()


def require_own(plan: AdaptationPlan, planned: Sequence[Stage]) -> None:
    """Raises ConfigError where ``out`` holds files, and none of these stages."""
    if not plan.out.is_dir() or any(Record(stage).is_started for stage in planned):
        return
    own = {stage.folder.relative_to(plan.out).parts[0] for stage in planned} | {LOCK_FILE}
    if others := sorted(
        path.name for path in plan.out.iterdir() if path.name not in own and not path.name.startswith(".")
    ):
        kind = "a training run" if RUN_FILE in others else "other files"
        raise ConfigError(
            f"out={plan.out} holds {kind} ({others[0]}); name a new folder, or one that this command made"
        )


def write_search(plan: AdaptationPlan, *, is_trained: bool = True) -> None:
    """Writes ``search.json`` and the index of BM25, so that ``dpr search`` and ``dpr serve`` open the folder
    ``out``: with BM25 alone where there was nothing to train on."""
    passages, words = resolve_passage_sources([str(plan.texts.corpus)], {}), plan.out / "bm25_index"
    choice = index_choice(IndexerConfig(kind="bm25"))
    try:
        open_text_index(choice, passages, str(words))
    except InputError:  # of the texts as they were before, or damaged
        remove_folder(words)
        open_text_index(choice, passages, str(words))
    if not is_trained:
        SearchSettings(passages=passages, indexer={"kind": "bm25"}, bm25_index_path=str(words)).write(
            plan.out
        )
        return
    SearchSettings(
        model_file=str(plan.out / "model"),
        encoded_ctx_files=[str(plan.out / "vectors" / "corpus_0")],
        passages=passages,
        bm25_index_path=str(words),
        hybrid="linear",
        hybrid_weight=plan.weight(),
        hybrid_depth=_DEPTH,
    ).write(plan.out)


class _Builder:
    def __init__(self, plan: AdaptationPlan) -> None:
        self.plan = plan
        self.stages = [plan.texts.stage()]
        self.prepared = plan.texts.prepared
        self.evaluated = self.prepared / pseudo_questions.EVALUATION_CORPUS
        self.is_new = plan.encoder in (STATIC, TRANSFORMER)
        self.device = overrides({"device": plan.device})
        self.model = {"model_file": plan.out / "model"}

    def build(self) -> list[Stage]:
        plan = self.plan
        if self.is_new:
            self._new_encoder()
        before = [stage.name for stage in self.stages]
        if len(plan.trials) > 1:
            for trial in plan.trials:
                self._train(plan.trial_folder(trial), f"a trial: {trial.name}", before, tried=trial)
        first = plan.out / ("untaught" if plan.teacher else "model")
        self._train(first, f"training ({plan.encoder})", [stage.name for stage in self.stages])
        if plan.teacher:
            self._teach(first, plan.teacher)
        self._embed("vectors", plan.texts.corpus, "the passages, for searching")
        self._embed("evaluation", self.evaluated, "the passages, without the questions cut or made from them")
        bm25 = overrides({"indexer": "bm25", "bm25_index_path": plan.out / "bm25" / "index"})
        dense = [
            *overrides({**self.model, "encoded_ctx_files": plan.out / "evaluation" / "corpus_0"}),
            *self.device,
        ]
        both = [
            *dense,
            *overrides(
                {"bm25_index_path": plan.out / "weight" / "index", "hybrid": "linear", "hybrid_depth": _DEPTH}
            ),
        ]
        tuned = [*both, "tune_hybrid_weight=true", f"tune_metric={_METRIC}"]
        self._retrieve(
            "weight",
            folder_data.DEV,
            lambda: tuned,
            "the hybrid's weight, on the dev questions",
            ["evaluation"],
            ["index"],
        )
        if isinstance(plan.texts, FolderTexts):
            test = folder_data.TEST
            self._retrieve("bm25", test, lambda: bm25, "BM25 on the test questions", [], ["index"])
            self._retrieve(
                "dense", test, lambda: dense, "the trained encoder on the test questions", ["evaluation"]
            )
            self._retrieve(
                "hybrid",
                test,
                lambda: [*both, f"hybrid_weight={plan.weight()}"],
                "both together on the test questions",
                ["evaluation", "weight"],
            )
        return self.stages

    def _stage(
        self,
        folder: Path,
        what: str,
        command: Callable[[], list[str]],
        outputs: Callable[[], Sequence[str]],
        after: Sequence[str] = (),
        **options: Any,
    ) -> None:
        """Adds a stage, which reads the prepared texts and what the stages ``after`` which it comes have
        made."""
        name, read = (
            folder.relative_to(self.plan.out).as_posix(),
            dict.fromkeys([self.stages[0].name, *after]),
        )
        self.stages.append(Stage(name, folder, what, command, outputs=outputs, after=list(read), **options))

    def _new_encoder(self) -> None:
        plan = self.plan
        shape = {"layers": 0, "hidden": 1024} if plan.encoder == STATIC else {"layers": 1, "hidden": 256}
        shape["vocab_size"] = 30_000 if plan.encoder == STATIC else 8000
        given: dict[str, Any] = {
            "corpus": plan.texts.corpus,
            "out": plan.out / "encoder" / "untrained",
            **shape,
        }
        if isinstance(plan.texts, FolderTexts):
            given["questions"] = [self.prepared / f"{folder_data.TRAIN}.jsonl"]
        command = ["new-encoder", *overrides(given)]
        self._stage(
            plan.out / "encoder",
            "an encoder without weights",
            lambda: command,
            lambda: ["untrained"],
            settings=shape,
        )

    def _train(self, folder: Path, what: str, after: Sequence[str], *, tried: Trial | None = None) -> None:
        """The training, with the settings that were chosen by then, or a trial."""
        plan = self.plan
        start = (
            {"encoder.pretrained_model_cfg": str(plan.out / "encoder" / "untrained")} if self.is_new else {}
        )
        sets = plan.texts.train_sets(plan.kinds)
        options = {
            f"datasets.{name}.{key}": value for name, entry in sets.items() for key, value in entry.items()
        }
        mixed = {"train.sampling.mixed": True} if len(sets) > 1 else {}
        given = {**start, "train_datasets": list(sets), **options, **mixed}
        values = [*overrides(given), *self._judged(folder)]

        def command() -> list[str]:
            share = 1.0 if tried is None else _SHARE_OF_TRIALS
            return [
                "train",
                *training_overrides(plan, plan.counts()["passages"], share),
                *(tried or plan.chosen()).overrides,
                *values,
            ]

        known = Path(plan.encoder)
        is_folder = known.is_dir() and not self.is_new
        self._stage(
            folder,
            what,
            command,
            lambda: [RUN_FILE] if tried else trained_files(folder),
            after,
            # a trial's checkpoints: its metrics are what is compared
            scratch=lambda: trained_files(folder)[:-1] if tried else [],
            settings={
                "encoder": "a folder" if is_folder else plan.encoder,
                "pairs": plan.kinds,
                "max_pairs": plan.max_pairs,
                "seed": plan.seed,
                "trial": tried.overrides if tried else [],
            },
            inputs={"encoder": [known]} if is_folder else {},
            processes=plan.processes,
            is_training=True,
        )

    def _judged(self, folder: Path) -> list[str]:
        """The settings of a training in ``folder`` by which it is judged on the dev questions."""
        names = {"questions": pseudo_questions.QUESTIONS, "qrels": pseudo_questions.QRELS}
        files = {
            "corpus": str(self.evaluated),
            **{key: str(self.prepared / name) for key, name in names.items()},
        }
        values: dict[str, Any] = {
            "sanity_validation": 0,
            "eval_at_start": False,
            "best_metric": f"eval/dev/{_METRIC}",
            "keep_last": 1,
        }
        values["validation"] = [{"kind": "retrieval", **files, "name": "dev"}]
        return [
            *overrides({f"train.{key}": value for key, value in values.items()} | {"output_dir": folder}),
            *self.device,
        ]

    def _teach(self, first: Path, teacher: Path) -> None:
        """Trains the model in ``first`` on the teacher's margins between pairs and the negatives that BM25
        and this model find for them, among the passages of the pairs: were those held back negatives, the dev
        questions would tell nothing."""
        plan, model, pairs, own = (
            self.plan,
            self.plan.out / "model",
            self.plan.out / "pairs",
            overrides({"model_file": first}),
        )
        (entry,), file, before = (
            plan.texts.train_sets(plan.kinds).values(),
            pairs / "cut" / pseudo_questions.TRAIN,
            pairs.name,
        )
        config = (teacher / "config.json").read_text() if (teacher / "config.json").is_file() else ""
        kind = "cross_encoder" if "ForSequenceClassification" in config else "model_file"

        def cut() -> list[str]:
            rounds = -(-(plan.max_pairs or _LEAST_PAIRS) // plan.counts()["passages"])
            how = {"pairs": plan.kinds, "held_back": entry["held_back"], "rounds": rounds}
            return ["prepare-pairs", *overrides({"corpus": entry["file"], "out": pairs / "cut", **how})]

        def train() -> list[str]:
            audit, temperature = (
                read_json(file.with_name(f"{file.name}.audit.json")),
                float(plan.chosen().overrides[-1].partition("=")[2]),
            )
            scores = audit["positive_score_quantiles"] + audit["negative_score_quantiles"]
            scale = _WIDEST_MARGIN * temperature / (max(scores) - min(scores) or 1)
            batch = max(
                16, min(128 if self.is_new else 32, 2 ** (plan.counts()["passages"].bit_length() - 2))
            )
            how = [
                *plan.batch(batch),
                "train.hard_negatives=6",
                "train.num_train_epochs=1",
                "loss.nll_weight=0",
            ]
            how += [f"loss.margin_mse_weight={2 / temperature**2:g}", f"loss.margin_mse_scale={scale:g}"]
            how += ["train.learning_rate=0.005"] if self.is_new else []
            start = overrides({"model_file": first, "train_datasets": file, "init": "weights"})
            return ["train", *start, *how, *self._judged(model)]

        self._stage(
            pairs,
            "pairs, as a file",
            cut,
            lambda: ["cut"],
            settings={"pairs": plan.kinds, "max_pairs": plan.max_pairs},
        )
        for name, what, how, inputs in [
            ("mined_bm25", "negatives, by BM25", ["mine", "per_question=3"], {}),
            (
                "mined",
                "negatives, by the encoder",
                ["mine", "per_question=3", "keep_existing=true", *own, *self.device],
                {},
            ),
            (
                "scored",
                "the teacher's scores",
                ["score", *overrides({kind: teacher}), *self.device],
                {"teacher": [teacher]},
            ),
        ]:
            read, file, after = file, plan.out / name / "pairs.jsonl", [first.name, before]
            command, before = partial(list[str], [*how, *overrides({"files": [read], "out": file})]), name
            self._stage(
                file.parent,
                what,
                command,
                lambda: ["pairs.jsonl", "pairs.jsonl.audit.json"],
                after,
                settings={},
                inputs=inputs,
            )
        options = {"settings": {"seed": plan.seed}, "processes": plan.processes, "is_training": True}
        self._stage(
            model,
            "training, by the teacher",
            train,
            lambda: trained_files(model),
            [first.name, before],
            **options,
        )

    def _embed(self, name: str, corpus: Path, what: str) -> None:
        folder = self.plan.out / name
        command = [
            "embed",
            *overrides({**self.model, "ctx_src": corpus, "out_file": folder / "corpus"}),
            *self.device,
        ]
        self._stage(
            folder,
            what,
            lambda: command,
            lambda: ["corpus_0"],
            ["model"],
            settings={},
            processes=self.plan.processes,
        )

    def _retrieve(
        self,
        name: str,
        split: str,
        how: Callable[[], list[str]],
        what: str,
        after: Sequence[str],
        more: Sequence[str] = (),
    ) -> None:
        files = {
            "qa_dataset": self.prepared / f"{split}_questions.jsonl",
            "qrels": self.prepared / f"{split}_qrels.tsv",
        }
        asked = overrides({**files, "ctx_datasets": self.evaluated, "metrics_file": self.plan.metrics(name)})
        settings = {"hybrid_depth": _DEPTH}
        outputs = ["metrics.json", *more]
        self._stage(
            self.plan.out / name,
            what,
            lambda: ["retrieve", *asked, *how()],
            lambda: outputs,
            after,
            settings=settings,
        )


def training_overrides(plan: AdaptationPlan, passages: int, share: float = 1.0) -> list[str]:
    """The settings of ``dpr train`` for an encoder and a number of passages, without those of the trials.

    The batch is small where there are few passages, so that there are steps to learn in; the pairs are a
    multiple of the passages between bounds, so that the time is bounded.
    """
    batch = max(16, min(1024, 2 ** (passages.bit_length() - 2)))
    pairs = max(_LEAST_PAIRS, min(_PAIRS_OF_PASSAGE * passages, _MOST_PAIRS))
    if plan.encoder == STATIC:
        how = ["encoder=static", "encoder.pooling=idf_sqrt", "train.learning_rate=0.02"]
    elif plan.encoder == TRANSFORMER:
        batch, pairs = min(batch, 96), min(pairs, 80_000)
        how = [
            "encoder=quickstart",
            "train.learning_rate=1e-3",
            "train.embedding_lr_factor=5",
            "train.weight_decay=0.1",
        ]
    else:
        batch, pairs = min(batch, 32), max(1024, min(4 * passages, 20_000))
        known = Path(plan.encoder)
        how = (
            overrides({"model_file": plan.encoder})
            if known.is_dir()
            else overrides({"encoder.pretrained_model_cfg": plan.encoder, "encoder.shared": True})
        )
        if not (
            is_checkpoint(resolve_checkpoint(known)) or (known / "modules.json").is_file()
        ):  # those state it
            how += ["encoder.pooling=mean", "encoder.normalize=true"]
    pairs = plan.max_pairs or pairs
    steps = max(1, round((pairs if share == 1 else min(pairs, max(pairs * share, _LEAST_PAIRS))) / batch))
    epochs = -(-steps // max(1, passages // batch))
    how += [
        *plan.batch(batch),
        f"train.max_steps={steps}",
        f"train.num_train_epochs={epochs}",
        "train.hard_negatives=0",
    ]
    return [*how, f"train.eval_every_steps={steps}"]
