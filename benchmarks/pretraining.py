"""``python -m benchmarks.pretraining --corpus corpus.jsonl --out runs/pretraining``: masked language modelling by ``dpr pretrain`` and by
transformers' own Trainer, side by side.

Both train the same BERT from random weights on the same texts, cut at the same length, as many in a batch, with 15 % of the tokens masked,
AdamW, fp32, one process that prepares batches. Transformers' Trainer pads each batch to its longest text and computes the logits of all
tokens; its texts are tokenised beforehand, as ours are. Each training is a process of its own, the sides take turns, and what is compared
are real tokens per second between the end of step ``SKIPPED`` and the end of the last, so that no start is counted.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from torch import Tensor

from benchmarks.measuring import median_and_range
from dpr.core.batch import BiEncoderBatch
from dpr.losses.protocol import Pool
from dpr.training.callbacks import Callback
from dpr.training.run import Run

SKIPPED, STEPS = 5, 30
SIDES = ("dpr", "transformers")


def ours(corpus: Path, encoder: Path, out: Path, *, length: int, batch: int) -> float:
    """Real tokens per second of ``dpr pretrain``."""
    from dpr.cli.main import main

    arguments = {
        "train_datasets": f"[{corpus}]",
        "output_dir": out,
        "encoder.pretrained_model_cfg": encoder,
        "encoder.sequence_length": length,
        "pretrain.masked": 0.15,
        "pretrain.decoder_masked": 0,
        "pretrain.pairs_weight": 0,
        "train.batch_size": batch,
        "train.max_steps": STEPS,
        "train.log_batch_step": 1,
        "train.callbacks": "[benchmarks.pretraining:Noted]",
        "device": "cpu",
    }
    main(["pretrain", *(f"{key}={value}" for key, value in arguments.items())])
    return _rate()


NOTED: list[tuple[float, float]] = []
"""After each step the time, and the tokens so far."""


class Noted(Callback):
    """Notes the texts' tokens; the questions of ``pretrain.pairs_weight=0`` are special tokens alone."""

    def __init__(self) -> None:
        self.tokens = 0

    def on_pool(self, run: Run, questions: Tensor, pool: Pool, batch: BiEncoderBatch) -> None:
        self.tokens += len(batch.contexts.tokens)

    def on_step_end(self, run: Run) -> None:
        sys.modules["benchmarks.pretraining"].NOTED.append((time.perf_counter(), self.tokens))  # this one is __main__


def _rate() -> float:
    noted = sys.modules["benchmarks.pretraining"].NOTED
    (start, before), (end, after) = noted[SKIPPED - 1], noted[STEPS - 1]
    return (after - before) / (end - start)


def theirs(corpus: Path, encoder: Path, out: Path, *, length: int, batch: int) -> float:
    """The same of ``transformers.Trainer`` with its collator for masked language modelling."""
    from datasets import Dataset
    from transformers import (
        AutoConfig,
        AutoTokenizer,
        BertForMaskedLM,
        DataCollatorForLanguageModeling,
        Trainer,
        TrainerCallback,
        TrainerState,
        TrainingArguments,
    )

    import benchmarks.pretraining as here

    class Times(TrainerCallback):
        def on_step_end(self, args: object, state: TrainerState, control: object, **options: object) -> None:
            here.NOTED.append((time.perf_counter(), state.num_input_tokens_seen))

    tokenizer = AutoTokenizer.from_pretrained(encoder)
    rows = [json.loads(line) for line in corpus.read_text(encoding="utf-8").splitlines()]
    pairs = [[row["title"]] * bool(row["title"]) + [row["text"]] for row in rows]
    tokens = [tokenizer(*pair, truncation=True, max_length=length) for pair in pairs]
    model = BertForMaskedLM(AutoConfig.from_pretrained(encoder))
    arguments = TrainingArguments(
        output_dir=str(out),
        per_device_train_batch_size=batch,
        max_steps=STEPS,
        dataloader_num_workers=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        include_num_input_tokens_seen="non_padding",
    )
    collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)
    data = Dataset.from_list([{"input_ids": each["input_ids"]} for each in tokens])
    Trainer(model, arguments, train_dataset=data, data_collator=collator, callbacks=[Times()]).train()
    return _rate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True, help="JSON lines with title and text")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--vocab-size", type=int, default=12_000)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--side", choices=SIDES, help="one measurement, in this process")
    given = parser.parse_args()
    encoder = given.out / "encoder"
    if given.side:
        measure = {"dpr": ours, "transformers": theirs}[given.side]
        rate = measure(given.corpus, encoder, given.out / f"{given.side}.{os.getpid()}", length=given.length, batch=given.batch)
        print(f"rate {rate}")
        return
    from dpr.cli.main import main as dpr

    size = [f"layers={given.layers}", f"hidden={given.hidden}", f"vocab_size={given.vocab_size}"]
    if dpr(["new-encoder", f"corpus={given.corpus}", f"out={encoder}", *size]):
        raise SystemExit(1)
    rates: dict[str, list[float]] = {side: [] for side in SIDES}
    environment = os.environ | {"OMP_NUM_THREADS": str(given.threads)}
    for _ in range(given.rounds):
        for side in SIDES:
            command = [sys.executable, "-m", "benchmarks.pretraining", *sys.argv[1:], "--side", side]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(done.stderr)
            rates[side].append(float(done.stdout.rpartition("rate ")[2]))
            print(f"{side:<14} {rates[side][-1]:.0f} tokens/s", flush=True)
    ratio, least, most = median_and_range([mine / other for mine, other in zip(rates["dpr"], rates["transformers"], strict=True)])
    print(f"{ratio:.2f} times as fast ({least:.2f} to {most:.2f})")


if __name__ == "__main__":
    main()
