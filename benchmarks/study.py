"""``python -m benchmarks.study --data ../shared/data --out runs/study``: what encoders and objectives are
worth from scratch.

On SQuAD, MedQuAD, Cranfield and NPL (``benchmarks.study_data``), beside BM25: a static encoder untrained and
trained, the same with mined negatives and with a teacher; the quickstart's transformer as it is, with the
pooling and temperature of the static encoder, and started from it. All have one vocabulary and width. Where a
condition has several settings, seed 1 is trained with each and the best on the dev part is used for all
seeds; the test part is judged once for each run. Every step is one of the public commands and is skipped when
it is done, so a run that was killed goes on, and ``--sets``, ``--conditions`` and ``--seeds`` may be given
piece by piece; the table shows all that is there.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.study_data import SETS, qrels_of, searched, write_set
from benchmarks.study_table import Measured, table
from dpr.cli.main import main as dpr_main
from dpr.evaluation.ranking_metrics import evaluate_questions
from dpr.formats.question_sets import read_qrels
from dpr.formats.results import read_trec_run

Settings = Mapping[str, object]

REFERENCE, MINED, TAUGHT = "static", "static, mined negatives", "static, mined negatives, teacher"
CHOICE_SEED = 1
SHOWN = {
    "squad": ("accuracy@20", "mrr@10"),
    "medquad": ("accuracy@20", "mrr@10"),
    "cranfield": ("ndcg@10", "mrr@10"),
    "npl": ("ndcg@10", "mrr@10"),
}
CHOSEN_BY = "mrr@10"
NEGATIVES = 3

_UNTRAINED: Settings = {"train.max_steps": 1, "train.learning_rate": 0, "train.warmup_steps": 0}
_POOLED_AS_STATIC: Settings = {"encoder.pooling": "idf_sqrt", "loss.temperature": 0.05}


@dataclass(frozen=True)
class Condition:
    """What is trained: on which files (of the training part, by ``Study.training_file``), and one or more
    settings to choose among."""

    base: str
    candidates: tuple[tuple[str, Settings], ...] = (("train", {}),)
    fixed: Settings = field(default_factory=dict)
    as_chosen_for: str | None = None
    """A condition whose choice of files and settings is taken over."""


def _rates(*values: float) -> tuple[tuple[str, Settings], ...]:
    return tuple(("train", {"train.learning_rate": value}) for value in values)


def _taught(*values: tuple[float, float, float]) -> tuple[tuple[str, Settings], ...]:
    """From the weight of the negative log likelihood, that of the teacher's term, and the teacher's
    temperature."""
    names = ("loss.nll_weight", "loss.kl_weight", "loss.teacher_temperature")
    return tuple(("taught", dict(zip(names, value, strict=True))) for value in values)


_TEACHERS = _taught((0.2, 1, 0.05), (0.2, 1, 0.2), (1, 1, 0.2), (1, 0.3, 0.2), (1, 0.3, 0.5))
CONDITIONS = {
    "static, untrained": Condition("static", (("train", _UNTRAINED),)),
    REFERENCE: Condition("static", _rates(0.002, 0.005, 0.02)),
    MINED: Condition("static", (("bm25", {}), ("own", {})), {"train.hard_negatives": NEGATIVES}),
    TAUGHT: Condition("static", _TEACHERS, {"train.hard_negatives": NEGATIVES}),
    "transformer": Condition("quickstart", fixed={"loss.temperature": 0.07}),
    "transformer, idf pooling": Condition("quickstart", fixed=_POOLED_AS_STATIC),
}


def dpr(made: Path, *arguments: object) -> None:
    """Runs a command in this process unless what it makes is there.

    Raises:
        SystemExit: it failed.
    """
    if made.exists():
        return
    line = [str(argument) for argument in arguments]
    print("$ dpr", *line, flush=True)
    if code := dpr_main(line):
        raise SystemExit(code)


class Study:
    """One set, below one folder."""

    def __init__(self, name: str, out: Path, *, width: int, vocabulary: int, steps: int) -> None:
        self.name, self.out, self.steps = name, out / name, steps
        self.width, self.vocabulary = width, vocabulary

    def prepare(self, data: Path) -> None:
        """The parts of the set, one vocabulary of training and test passages (no question of the test),
        BM25's results."""
        write_set(self.name, data, self.out, dpr)
        static, transformer = self.out / "encoder_static", self.out / "encoder_quickstart"
        learned = (f"--corpus={self.out / 'texts.jsonl'}", f"--hidden={self.width}")
        size = (f"--questions={self.out / 'train.jsonl'}", f"--vocab-size={self.vocabulary}")
        dpr(static, "new-encoder", *learned, *size, f"--out={static}", "--layers=0")
        dpr(
            transformer,
            "new-encoder",
            *learned,
            f"--out={transformer}",
            f"--tokenizer={static}",
            "--layers=1",
        )
        self._judge("BM25", 0, "test", "indexer=bm25", f"bm25_index_path={self.out / 'bm25_index'}")

    def measure(self, name: str, seed: int) -> None:
        """Trains one condition with one seed, with the settings that are best on dev, and judges it on the
        test part."""
        self._run(name, seed, self._best(name), "test")

    def rows(self) -> dict[str, dict[int, Measured]]:
        """What was measured on the test part so far, by seed; BM25 has seed 0."""
        files = {
            name: sorted((self.out / "metrics").glob(f"{_slug(name)}.*.test.json"))
            for name in ("BM25", *CONDITIONS)
        }
        return {
            name: {int(file.name.split(".")[1]): Measured.read(file) for file in found}
            for name, found in files.items()
        }

    def chosen(self) -> dict[str, dict[str, float]]:
        """For each condition with several settings, what each has on dev."""
        found: dict[str, dict[str, float]] = {}
        for name, condition in CONDITIONS.items():
            for number, (files, settings) in enumerate(condition.candidates):
                file = self._metrics_file(name, CHOICE_SEED, "dev", number)
                if file.is_file():
                    label = ", ".join([files, *(f"{key}={value}" for key, value in settings.items())])
                    found.setdefault(name, {})[label] = _mean(Measured.read(file))
        return found

    def _best(self, name: str) -> int:
        """The candidate that is best on dev with the seed that settings are chosen with; those not tried yet
        are."""
        candidates = range(len(CONDITIONS[name].candidates))
        if len(candidates) == 1:
            return 0
        return max(candidates, key=lambda number: _mean(self._run(name, CHOICE_SEED, number, "dev")))

    def _run(self, name: str, seed: int, number: int, part: str) -> Measured:
        file = self._metrics_file(name, seed, part, number)
        if file.exists():
            return Measured.read(file)
        model = self._train(name, seed, number)
        vectors = self._embed(model, part)
        return self._judge(
            name,
            seed,
            part,
            f"model_file={model}",
            f"encoded_ctx_files=[{vectors}]",
            number=number,
            model=model,
        )

    def _train(self, name: str, seed: int, number: int) -> Path:
        """The run folder of a model, trained unless that is done; the seconds of a training that was not
        interrupted are noted."""
        model = self.out / "models" / f"{_slug(name)}.{seed}.{number}"
        times = model / "seconds.json"
        if times.exists():
            return model
        condition = CONDITIONS[name]
        if condition.as_chosen_for:
            files, choice = CONDITIONS[condition.as_chosen_for].candidates[
                self._best(condition.as_chosen_for)
            ]
        else:
            files, choice = condition.candidates[number]
        settings: dict[str, object] = {
            "encoder": condition.base,
            "encoder.pretrained_model_cfg": self.out / f"encoder_{condition.base}",
            "train.hard_negatives": 0,
            "train.eval_per_epoch": 0,
            "train.keep_last": 1,
            "train_datasets": self._training_file(files, seed),
            "output_dir": model,
            "seed": seed,
        }
        if condition.base == "quickstart":
            settings |= {"train": "quickstart", "train.max_steps": self.steps, "train.eval_every_steps": 0}
        elif name != REFERENCE and choice is not _UNTRAINED:
            settings |= CONDITIONS[REFERENCE].candidates[self._best(REFERENCE)][1]
        settings |= dict(condition.fixed) | dict(choice)
        is_new = not model.exists()
        wall, cpu = time.perf_counter(), sum(os.times()[:4])
        dpr(times, "train", *(f"{key}={value}" for key, value in settings.items()))
        wall, cpu = time.perf_counter() - wall, sum(os.times()[:4]) - cpu
        seconds = {"wall_s": wall, "cpu_s": cpu} if is_new and choice is not _UNTRAINED else {}
        times.write_text(json.dumps(seconds), encoding="utf-8")
        return model

    def _training_file(self, kind: str, seed: int) -> Path:
        """Training rows as they are; with negatives of BM25, or of this seed's static encoder; or with a
        teacher's scores."""
        train = self.out / "train.jsonl"
        if kind == "train":
            return train
        mining = (f"per_question={NEGATIVES}", "max_relative_score=0.95")
        if kind == "bm25":
            made = self.out / "mined" / "bm25.jsonl"
            dpr(made, "mine", train, f"out={made}", mining[0])
            return made
        own = self.out / "mined" / f"own.{seed}.jsonl"
        static = f"model_file={self._train(REFERENCE, seed, self._best(REFERENCE))}"
        dpr(own, "mine", train, f"out={own}", *mining, static)
        if kind == "own":
            return own
        # A row has a teacher's score for each of its passages; which negatives it has is as chosen without a
        # teacher.
        negatives = self._training_file(CONDITIONS[MINED].candidates[self._best(MINED)][0], seed)
        made = self.out / "mined" / f"taught.{seed}.jsonl"
        dpr(made, "score", negatives, f"out={made}", static, "hybrid=linear")
        return made

    def _embed(self, model: Path, part: str) -> Path:
        vectors = model / f"vectors_{part}"
        made = Path(f"{vectors}_0")
        dpr(
            made / "manifest.json",
            "embed",
            f"model_file={model}",
            f"ctx_src={searched(self.out / part)}",
            f"out_file={vectors}",
        )
        return made

    def _judge(
        self, name: str, seed: int, part: str, *how: object, number: int = 0, model: Path | None = None
    ) -> Measured:
        """Metrics of each question, kept in a file that says that the run is done."""
        file = self._metrics_file(name, seed, part, number)
        if file.exists():
            return Measured.read(file)
        folder, found = self.out / part, file.with_suffix(".trec")
        file.parent.mkdir(parents=True, exist_ok=True)
        questions = (
            f"qa_dataset={folder / 'queries.jsonl'}",
            f"qrels={qrels_of(folder)}",
            f"ctx_datasets={searched(folder)}",
        )
        dpr(found, "retrieve", *questions, f"trec_run_file={found}", *how)
        values = evaluate_questions(read_trec_run(found), read_qrels(qrels_of(folder)), (10, 20))
        seconds = json.loads((model / "seconds.json").read_text(encoding="utf-8")) if model else {}
        metrics = {
            metric: {question: each[metric] for question, each in values.items()}
            for metric in SHOWN[self.name]
        }
        measured = Measured(metrics, **seconds)
        temporary = file.with_suffix(".part")
        temporary.write_text(json.dumps(asdict(measured)), encoding="utf-8")
        temporary.replace(file)
        return measured

    def _metrics_file(self, name: str, seed: int, part: str, number: int) -> Path:
        middle = f"{seed}.{number}" if part == "dev" else str(seed)
        return self.out / "metrics" / f"{_slug(name)}.{middle}.{part}.json"


def _require_same_shape(out: Path, shape: dict[str, int]) -> None:
    """What is below ``out`` is compared, so all of it has one shape."""
    file = out / "shape.json"
    if not file.exists():
        out.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(shape), encoding="utf-8")
    elif (found := json.loads(file.read_text(encoding="utf-8"))) != shape:
        raise SystemExit(
            f"error: {out} holds runs with {found}, expected {shape}; name another folder with --out"
        )


def _mean(measured: Measured) -> float:
    values = measured.questions[CHOSEN_BY].values()
    return sum(values) / len(values)


def _slug(name: str) -> str:
    return name.replace(",", "").replace(" ", "_")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--data", type=Path, required=True, help="folder with squad/, medquad/, cranfield/ and npl/"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=SETS)
    parser.add_argument(
        "--conditions", nargs="*", choices=CONDITIONS, default=list(CONDITIONS), help="none: only the table"
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=792, help="of the transformers, 96 questions each")
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--vocabulary", type=int, default=12000)
    arguments = parser.parse_args()
    shape = {"width": arguments.width, "vocabulary": arguments.vocabulary, "steps": arguments.steps}
    _require_same_shape(arguments.out, shape)
    studies = [Study(name, arguments.out, **shape) for name in arguments.sets]
    for study in studies:
        study.prepare(arguments.data)
        for name in arguments.conditions:
            for seed in arguments.seeds:
                study.measure(name, seed)
    for study in studies:
        print(f"\n## {study.name}\n\n{table(study.rows(), SHOWN[study.name], REFERENCE)}\n")
        for name, tried in study.chosen().items():
            print(
                f"{CHOSEN_BY} on dev, {name}: "
                + "; ".join(f"{label} {value:.3f}" for label, value in tried.items())
            )


if __name__ == "__main__":
    main()
