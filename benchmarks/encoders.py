"""Training and encoding against sentence-transformers and plain loops on Hugging Face models: the same weights, texts and optimizer."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from benchmarks import profiling, sides
from benchmarks.measuring import Figures, table, take_turns
from benchmarks.page import Ratio, Section
from benchmarks.workload import load_texts, write_encoder
from dpr.models.encoder import Encoder
from dpr.training.throughput import TowerCost

OURS, LONGEST, PADDED = "dpr (packed)", "plain, padded to the longest", "plain, padded to 256"
RIVAL = "sentence-transformers"
LAYERS, WIDTH, LENGTH, BATCH = 4, 256, 256, 32
TRAINING_BARS = {RIVAL: 2.2, PADDED: 2.8}
ENCODING_BARS = {RIVAL: 1.3}
ENCODING_SHARE = 0.75
NUM_ENCODED = 128
Sides = Mapping[str, Callable[[], object]]


def training(rounds: int, device: torch.device, *, dropout: float) -> Section:
    """Two batches a side and round, optimizer included; data are tokenised and collated beforehand on every side."""
    texts = load_texts(4 * BATCH)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_encoder(folder, texts, layers=LAYERS, width=WIDTH)
        model = sides.our_model(folder, dropout=dropout, length=LENGTH)
        batches = sides.our_batches(model, texts, batch=BATCH)
        lengths = [length for batch in batches for length in [*batch.questions.lengths.tolist(), *batch.contexts.lengths.tolist()]]
        competitors: Sides = {
            OURS: sides.our_training(model, batches, device),
            LONGEST: sides.plain_training(folder, batches, device, dropout=dropout),
            PADDED: sides.plain_training(folder, batches, device, dropout=dropout, pad_to=LENGTH),
            **_if_installed(lambda: sides.st_training(folder, texts, device, batch=BATCH, length=LENGTH, dropout=dropout)),
        }
        units = len(batches) * BATCH
        flops = TowerCost(model.ctx_model).of(torch.tensor(lengths))
        figures = take_turns(competitors, units=units, flops=flops, rounds=rounds, device=device)
        profiled = _profiled(competitors, figures, units, device)
    what = (
        f"BERT of {LAYERS} layers x {WIDTH}, {BATCH} questions and {2 * BATCH} passages a step, {texts.source} texts cut at {LENGTH} "
        "tokens, fp32, AdamW and clipping included; batches are ready before the clock starts, on every side. sentence-transformers runs "
        "its MultipleNegativesRankingLoss on its own padded features in a bare loop, without what its trainer adds; DPR padded everything "
        "to 256, as the third row does."
    )
    text = "\n\n".join([what, table(figures, ours=OURS, unit="questions/s"), *profiled])
    return Section(f"Training, dropout {dropout:g}", text, _ratios(figures, TRAINING_BARS if dropout else {}))


def encoding(rounds: int, device: torch.device) -> Section:
    """Texts to vectors, tokenising included."""
    texts = load_texts(NUM_ENCODED)
    passages = texts.passages
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_encoder(folder, texts, layers=LAYERS, width=WIDTH)
        model = sides.our_model(folder, dropout=0.1, length=LENGTH).to(device).eval().requires_grad_(False)
        lengths = [min(len(tokens), LENGTH) for tokens in model.tensorizer.tokenizer(passages)["input_ids"]]
        competitors: Sides = {
            OURS: sides.our_encoding(model, passages),
            LONGEST: sides.plain_encoding(folder, passages, device, length=LENGTH),
            PADDED: sides.plain_encoding(folder, passages, device, length=LENGTH, pad_to=LENGTH),
            **_if_installed(lambda: sides.st_encoding(folder, passages, device, length=LENGTH)),
        }
        flops = TowerCost(model.ctx_model).of(torch.tensor(lengths))
        whole = _cost_of_whole_layers(model.ctx_model, lengths)
        figures = take_turns(competitors, units=sum(lengths), flops=flops, rounds=rounds, device=device)
        profiled = _profiled(competitors, figures, sum(lengths), device)
    what = (
        f"{len(passages)} passages to vectors, tokenising included, with the same BERT. sentence-transformers runs `model.encode` "
        "(it sorts by length, batches of 32); the plain loops take batches of 32 in file order."
    )
    text = "\n\n".join([what, table(figures, ours=OURS, unit="tokens/s"), _share_verdict(figures[OURS].share, whole / flops), *profiled])
    return Section("Encoding", text, _ratios(figures, ENCODING_BARS))


def _cost_of_whole_layers(tower: Encoder, lengths: list[int]) -> float:
    """Operations of a tower that computes all tokens in its last layer too."""
    twin = copy.copy(tower)
    twin.reads_tokens = False
    return TowerCost(twin).of(torch.tensor(lengths))


def _share_verdict(share: float, whole: float) -> str:
    """As it is read, like the bars of ratios."""
    reached = f"Wanted is {ENCODING_SHARE:.0%} of the peak. Reached is {share:.0%} of it in operations that the vectors need"
    counted = f"(counted as if the last layer were computed for all tokens, as by the other sides: {share * whole:.0%})"
    if round(share, 2) >= ENCODING_SHARE:
        return f"{reached} {counted}."
    why = "In the way stands what is no product of weights: attention first, whose products are small, and tokenising."
    return f"{reached}, **missed** {counted}. {why}"


def _ratios(figures: Mapping[str, Figures], bars: Mapping[str, float]) -> tuple[Ratio, ...]:
    return tuple(
        Ratio.of(name, figures[OURS].ratios_to(side), next((bar for start, bar in bars.items() if name.startswith(start)), None))
        for name, side in figures.items()
        if name != OURS
    )


def _profiled(competitors: Sides, figures: Mapping[str, Figures], units: float, device: torch.device) -> list[str]:
    """Where our time goes and sentence-transformers'; of a CPU only, where operations take their time one after the other."""
    if device.type != "cpu":
        return []
    shown = {name: work for name, work in competitors.items() if name == OURS or name.startswith(RIVAL)}
    seconds = {name: units / figures[name].rate for name in shown}
    found = {name: profiling.shares(work) for name, work in shown.items()}
    products = found[OURS]["matrix products"]
    parts = ["Where the time goes:", profiling.table(seconds, found)]
    for rival in set(shown) - {OURS}:
        most = seconds[rival] / (seconds[OURS] * products)
        parts.append(
            f"Matrix products, which are of real tokens alone, are {products:.0%} of our time: with all else free, ours would be faster "
            f"than {rival} by {most:.2f}. What is left to gain lies between."
        )
    return parts


def _if_installed(make: Callable[[], Any]) -> dict[str, Any]:
    try:
        return {f"{RIVAL} {version(RIVAL)}": make()}
    except PackageNotFoundError:
        print('sentence-transformers is not installed and left out: pip install "dpr[bench]"')
        return {}
