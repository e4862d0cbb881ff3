"""``python -m benchmarks.quickstart_study --data runs/quickstart/data --out runs/quickstart_study``: what was
tried for the quickstart.

Trains each condition with the public commands, embeds the corpus and judges on the dev questions. What is
done is not repeated, so a run that was killed goes on, and ``--conditions`` measures some of them. Prints a
table of all that is there.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.study import dpr

SHOWN = {"accuracy@1": "top-1", "accuracy@20": "top-20", "accuracy@100": "top-100", "mrr@10": "MRR@10"}


@dataclass(frozen=True)
class Condition:
    """A static encoder and how it is trained: ``settings`` beside those of ``encoder=static``.

    ``title``: how often the title stands before the text; 0 = the tokenizer's pair. ``rows``: train, or those
    of ``Study.mined``.
    """

    settings: tuple[str, ...]
    width: int = 1024
    vocabulary: int = 8000
    pooling: str = "idf_sqrt"
    title: int = 3
    rows: str = "train"


def _trained(
    rate: float, temperature: float = 0.05, *more: str, batch: int = 512, epochs: int = 3, negatives: int = 0
) -> tuple[str, ...]:
    size = (
        f"train.batch_size={batch}",
        f"train.num_train_epochs={epochs}",
        f"train.hard_negatives={negatives}",
    )
    return (f"train.learning_rate={rate}", f"loss.temperature={temperature}", *size, *more)


_UNTRAINED = _trained(0, 0.05, "train.max_steps=1", "train.warmup_steps=0")
_TAUGHT = ("loss.nll_weight=1", "loss.kl_weight=0.3", "loss.teacher_temperature=0.2")
TEACHER = "temperature 0.03"
CONDITIONS = {
    "idf, title once, 512 wide, untrained": Condition(_UNTRAINED, 512, pooling="idf", title=0),
    "idf, title once, 512 wide": Condition(_trained(0.02), 512, pooling="idf", title=0),
    "idf_sqrt, title three times, untrained": Condition(_UNTRAINED),
    "trained, learning rate 0.002": Condition(_trained(0.002)),
    "learning rate 0.002, BM25 negatives": Condition(_trained(0.002, negatives=1), rows="bm25"),
    "learning rate 0.005": Condition(_trained(0.005)),
    "learning rate 0.005, words masked": Condition(
        _trained(0.005, 0.05, "train.augment.mask_probability=0.1")
    ),
    "batches of 128, two epochs": Condition(_trained(0.002, batch=128, epochs=2)),
    "title five times": Condition(_trained(0.003), title=5),
    "vocabulary of 16,000": Condition(_trained(0.003), vocabulary=16000),
    "2,048 wide": Condition(_trained(0.003), 2048),
    "temperature 0.1": Condition(_trained(0.003, 0.1)),
    TEACHER: Condition(_trained(0.003, 0.03)),
    "temperature 0.02": Condition(_trained(0.003, 0.02)),
    "temperature 0.03, vocabulary of 4,000": Condition(_trained(0.003, 0.03), vocabulary=4000),
    "temperature 0.03, windows of 64 tokens": Condition(
        _trained(0.003, 0.03, "train.augment.crop_tokens=64", epochs=4)
    ),
    "temperature 0.03, symmetric": Condition(_trained(0.003, 0.03, "loss.symmetric_weight=0.5")),
    "temperature 0.03, 2,048 wide": Condition(_trained(0.003, 0.03), 2048),
    "temperature 0.03, own negatives": Condition(_trained(0.003, 0.03, negatives=1), rows="own"),
    "temperature 0.03, own negatives, teacher": Condition(
        _trained(0.003, 0.03, *_TAUGHT, negatives=3), rows="taught"
    ),
    "batches of 2,048": Condition(_trained(0.005, 0.03, batch=2048, epochs=5)),
    "batches of 2,048, 2,048 wide": Condition(_trained(0.005, 0.03, batch=2048, epochs=5), 2048),
    "batches of 2,048, windows of 64 tokens, eight epochs": Condition(
        _trained(0.005, 0.03, "train.augment.crop_tokens=64", batch=2048, epochs=8)
    ),
    "batches of 4,096, ten epochs": Condition(_trained(0.005, 0.03, batch=4096, epochs=10)),
}


class Study:
    """The data of the quickstart, and one folder for all that is made of it."""

    def __init__(self, data: Path, out: Path) -> None:
        self.data, self.out = data, out

    def measure(self, name: str) -> None:
        """Trains, embeds and judges on dev what is not there yet; CPU seconds of a training that was not
        interrupted are noted."""
        model, metrics = self._model(name), self._metrics(name)
        questions = (
            f"qa_dataset={self.data / 'dev_questions.jsonl'}",
            f"qrels={self.data / 'dev_qrels.tsv'}",
        )
        corpus, vectors = self.data / "corpus.tsv", model / "vectors"
        dpr(
            model / "vectors_0" / "manifest.json",
            "embed",
            f"model_file={model}",
            f"ctx_src={corpus}",
            f"out_file={vectors}",
        )
        found = (f"model_file={model}", f"encoded_ctx_files={vectors}_0", f"metrics_file={metrics}")
        dpr(metrics, "retrieve", *questions, f"ctx_datasets={corpus}", *found)

    def rows(self) -> list[str]:
        """Markdown: what was measured so far."""
        lines = [
            "| | " + " | ".join(SHOWN.values()) + " | CPU s |",
            "|---" + "|---:" * (len(SHOWN) + 1) + "|",
        ]
        for name in CONDITIONS:
            if self._metrics(name).is_file():
                values = json.loads(self._metrics(name).read_text(encoding="utf-8"))["metrics"]
                times = self._folder(name) / "seconds.json"
                seconds = f"{json.loads(times.read_text()):.0f}" if times.is_file() else ""
                lines.append(
                    f"| {name} | "
                    + " | ".join(f"{values[metric]:.3f}" for metric in SHOWN)
                    + f" | {seconds} |"
                )
        return lines

    def _model(self, name: str) -> Path:
        condition, model = CONDITIONS[name], self._folder(name)
        encoder, train = (
            self.out / f"encoder_{condition.vocabulary}_{condition.width}",
            self.data / "train.json",
        )
        learned = (
            "--corpus",
            self.data / "corpus.tsv",
            "--questions",
            train,
            "--vocab-size",
            condition.vocabulary,
        )
        dpr(encoder, "new-encoder", *learned, "--layers", 0, "--hidden", condition.width, "--out", encoder)
        title = (
            ["encoder.title_template='" + "{title} " * condition.title + "{text}'"] if condition.title else []
        )
        form = (
            "encoder=static",
            f"encoder.pretrained_model_cfg={encoder}",
            f"encoder.pooling={condition.pooling}",
            *title,
        )
        files = (
            f"train_datasets={train if condition.rows == 'train' else self._mined(condition.rows)}",
            f"output_dir={model}",
        )
        is_new, start = not model.exists(), sum(os.times()[:4])
        dpr(
            model / "metrics.json",
            "train",
            *form,
            *condition.settings,
            "train.eval_per_epoch=0",
            "train.keep_last=1",
            *files,
        )
        if is_new:
            (model / "seconds.json").write_text(json.dumps(sum(os.times()[:4]) - start))
        return model

    def _mined(self, rows: str) -> Path:
        """bm25: each row with two negatives of BM25; own: three that the model ``TEACHER`` finds; taught:
        scored by its hybrid as well."""
        if rows == "bm25":
            dpr(
                self.out / "bm25.jsonl",
                "mine",
                self.data / "train.json",
                f"out={self.out / 'bm25.jsonl'}",
                "per_question=2",
            )
            return self.out / "bm25.jsonl"
        own, taught, model = (
            self.out / "own.jsonl",
            self.out / "taught.jsonl",
            f"model_file={self._model(TEACHER)}",
        )
        dpr(
            own,
            "mine",
            self.data / "train.json",
            f"out={own}",
            "per_question=3",
            "max_relative_score=0.95",
            model,
        )
        if rows == "own":
            return own
        dpr(taught, "score", own, f"out={taught}", model, "hybrid=linear")
        return taught

    def _folder(self, name: str) -> Path:
        return self.out / name.replace(",", "").replace(" ", "_")

    def _metrics(self, name: str) -> Path:
        return self._folder(name) / "metrics_dev.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the data folder of examples/quickstart")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--conditions", nargs="*", choices=CONDITIONS, default=list(CONDITIONS), help="none: only the table"
    )
    arguments = parser.parse_args()
    study = Study(arguments.data, arguments.out)
    started = time.monotonic()
    for name in arguments.conditions:
        study.measure(name)
    print(f"{time.monotonic() - started:.0f} s\n\n" + "\n".join(study.rows()))


if __name__ == "__main__":
    main()
