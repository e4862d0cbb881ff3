"""``make bench``, or ``python -m benchmarks [--layers 4 --width 256 --rounds 5]``: training and encoding against plain loops and
sentence-transformers, on the same weights, texts and optimizer."""

from __future__ import annotations

import argparse
import datetime
import platform
import tempfile
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from benchmarks import sides
from benchmarks.measuring import Figures, table, take_turns
from benchmarks.workload import Texts, load_texts, training_flops, write_encoder

OURS = "dpr (packed)"
LENGTH, BATCH = 256, 32
INTRODUCTION = """# Benchmarks

Ratios inside one run: the sides take turns on the same weights, texts and optimizer. `make bench` makes this page."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=None, help="write the tables to this Markdown file")
    arguments = parser.parse_args()
    device, texts = torch.device(arguments.device), load_texts(4 * BATCH)
    parts = [INTRODUCTION, _heading(arguments, texts)]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        config = write_encoder(folder, texts, layers=arguments.layers, width=arguments.width)
        for dropout in (0.1, 0.0):
            figures = _training(folder, config, texts, device, dropout, arguments.rounds)
            parts += [f"### Training, dropout {dropout}", table(figures, ours=OURS, unit="questions/s")]
            print(*parts[-2:], sep="\n\n", end="\n\n", flush=True)
        figures = _encoding(folder, config, texts, device, arguments.rounds)
        parts += ["### Encoding passages, tokenising included", table(figures, ours=OURS, unit="tokens/s")]
        print(*parts[-2:], sep="\n\n")
    if arguments.out is not None:
        arguments.out.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def _training(folder: Path, config: object, texts: Texts, device: torch.device, dropout: float, rounds: int) -> dict[str, Figures]:
    model = sides.our_model(folder, dropout=dropout, length=LENGTH)
    batches = sides.our_batches(model, texts, batch=BATCH)
    lengths = [length for batch in batches for length in [*batch.questions.lengths.tolist(), *batch.contexts.lengths.tolist()]]
    competitors = {
        OURS: sides.our_training(model, batches, device),
        "plain, padded to the longest": sides.plain_training(folder, batches, device, dropout=dropout),
        f"plain, padded to {LENGTH}": sides.plain_training(folder, batches, device, dropout=dropout, pad_to=LENGTH),
        **_if_installed(lambda: sides.st_training(folder, texts, device, batch=BATCH, length=LENGTH, dropout=dropout)),
    }
    return take_turns(competitors, units=len(batches) * BATCH, flops=training_flops(config, lengths), rounds=rounds, device=device)


def _encoding(folder: Path, config: object, texts: Texts, device: torch.device, rounds: int) -> dict[str, Figures]:
    model = sides.our_model(folder, dropout=0.1, length=LENGTH).to(device).eval()
    lengths = [min(len(tokens), LENGTH) for tokens in model.tensorizer.tokenizer(texts.passages)["input_ids"]]
    competitors = {
        OURS: sides.our_encoding(model, texts.passages),
        "plain, padded to the longest": sides.plain_encoding(folder, texts.passages, device, length=LENGTH),
        f"plain, padded to {LENGTH}": sides.plain_encoding(folder, texts.passages, device, length=LENGTH, pad_to=LENGTH),
        **_if_installed(lambda: sides.st_encoding(folder, texts.passages, device, length=LENGTH)),
    }
    return take_turns(competitors, units=sum(lengths), flops=training_flops(config, lengths, passes=1), rounds=rounds, device=device)


def _if_installed(make: Callable[[], sides.Work]) -> dict[str, sides.Work]:
    try:
        return {f"sentence-transformers {version('sentence-transformers')}": make()}
    except PackageNotFoundError:
        print('sentence-transformers is not installed and left out: pip install "dpr[bench]"')
        return {}


def _heading(arguments: argparse.Namespace, texts: Texts) -> str:
    device = torch.cuda.get_device_name() if arguments.device.startswith("cuda") else f"{platform.machine()} CPU"
    size = f"--layers {arguments.layers} --width {arguments.width}"
    return (
        f"BERT of {arguments.layers} layers x {arguments.width}, {BATCH} questions and {2 * BATCH} passages a step, {texts.source} texts "
        f"cut at {LENGTH} tokens, fp32, AdamW and clipping included. {device}, {torch.get_num_threads()} threads, "
        f"torch {torch.__version__}, transformers {version('transformers')}, {arguments.rounds} rounds, {datetime.date.today()}. "
        f"Shares are of the fp32 matrix-product peak (2048^3) measured beside each run; operations on real tokens only. "
        f"Command: `python -m benchmarks {size} --rounds {arguments.rounds}`."
    )


if __name__ == "__main__":
    main()
