"""Training and encoding against sentence-transformers and plain loops on Hugging Face models: the same
weights, texts and optimizer."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
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
LENGTH = 256
TRAINING_BARS = {RIVAL: 2.2, PADDED: 2.8}
ENCODING_BARS = {RIVAL: 1.3}


@dataclass(frozen=True)
class Case:
    """A BERT, the batches of a round of training, the passages of a round of encoding, and the shares of the
    peak that are wanted."""

    layers: int
    width: int
    batch: int
    batches: int
    num_encoded: int
    training_shares: Mapping[float, float]
    """By dropout."""
    encoding_share: float
    ratios: bool
    """Whether plain loops take part, and ratios have bars; else only sentence-transformers, without."""


SMALL = Case(
    4,
    256,
    batch=32,
    batches=2,
    num_encoded=128,
    training_shares={0.1: 0.58, 0.0: 0.68},
    encoding_share=0.75,
    ratios=True,
)
LARGE = Case(
    12,
    768,
    batch=8,
    batches=1,
    num_encoded=24,
    training_shares={0.1: 0.65},
    encoding_share=0.78,
    ratios=False,
)
Sides = Mapping[str, Callable[[], object]]


def training(rounds: int, device: torch.device, *, dropout: float, case: Case = SMALL) -> Section:
    """Every batch once a side and round, optimizer included; data are tokenised and collated beforehand on
    every side."""
    texts = load_texts(2 * case.batches * case.batch)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_encoder(folder, texts, layers=case.layers, width=case.width)
        model = sides.our_model(folder, dropout=dropout, length=LENGTH)
        batches = sides.our_batches(model, texts, batch=case.batch)
        lengths = [
            length
            for batch in batches
            for length in [*batch.questions.lengths.tolist(), *batch.contexts.lengths.tolist()]
        ]
        plain = {
            LONGEST: lambda: sides.plain_training(folder, batches, device, dropout=dropout),
            PADDED: lambda: sides.plain_training(folder, batches, device, dropout=dropout, pad_to=LENGTH),
        }
        competitors: Sides = {
            OURS: sides.our_training(model, batches, device),
            **({name: make() for name, make in plain.items()} if case.ratios else {}),
            **_if_installed(
                lambda: sides.st_training(
                    folder, texts, device, batch=case.batch, length=LENGTH, dropout=dropout
                )
            ),
        }
        units = len(batches) * case.batch
        flops, whole = (
            TowerCost(model.ctx_model).of(torch.tensor(lengths)),
            _cost_of_whole_layers(model.ctx_model, lengths),
        )
        figures = take_turns(competitors, units=units, flops=flops, rounds=rounds, device=device)
        profiled = _profiled(competitors, figures, units, device)
    what = (
        f"BERT of {case.layers} layers x {case.width}, {case.batch} questions and {2 * case.batch} passages a"
        f" step ({sum(lengths) // len(batches):,} tokens), {texts.source} texts truncated at {LENGTH} tokens,"
        " fp32, AdamW and clipping included; batches are ready before the clock starts, on every side."
        " sentence-transformers runs its MultipleNegativesRankingLoss on its own padded features in a bare"
        " loop, without what its trainer adds"
    )
    what += "; DPR padded everything to 256, as the third row does." if case.ratios else "."
    parts = [what, table(figures, ours=OURS, unit="questions/s")]
    if (wanted := case.training_shares.get(dropout)) is not None:
        why = (
            "The rest is work that is not a product with weights, and the optimizer, whose share falls with"
            " more tokens per step."
        )
        parts.append(_share_verdict(figures[OURS].share, whole / flops, wanted, why))
    title = f"Training, dropout {dropout:g}" + (
        "" if case == SMALL else f", {case.layers} layers x {case.width}"
    )
    return Section(
        title,
        "\n\n".join([*parts, *profiled]),
        _ratios(figures, TRAINING_BARS if dropout and case.ratios else {}),
    )


def encoding(rounds: int, device: torch.device, case: Case = SMALL) -> Section:
    """Texts to vectors, tokenising included."""
    texts = load_texts(case.num_encoded)
    passages = texts.passages
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_encoder(folder, texts, layers=case.layers, width=case.width)
        model = sides.our_model(folder, dropout=0.1, length=LENGTH).to(device).eval().requires_grad_(False)
        lengths = [min(len(tokens), LENGTH) for tokens in model.tensorizer.tokenizer(passages)["input_ids"]]
        plain = {
            LONGEST: lambda: sides.plain_encoding(folder, passages, device, length=LENGTH),
            PADDED: lambda: sides.plain_encoding(folder, passages, device, length=LENGTH, pad_to=LENGTH),
        }
        competitors: Sides = {
            OURS: sides.our_encoding(model, passages),
            **({name: make() for name, make in plain.items()} if case.ratios else {}),
            **_if_installed(lambda: sides.st_encoding(folder, passages, device, length=LENGTH)),
        }
        flops = TowerCost(model.ctx_model).of(torch.tensor(lengths))
        whole = _cost_of_whole_layers(model.ctx_model, lengths)
        figures = take_turns(competitors, units=sum(lengths), flops=flops, rounds=rounds, device=device)
        profiled = _profiled(competitors, figures, sum(lengths), device)
    bert = "the same BERT" if case == SMALL else f"a BERT of {case.layers} layers x {case.width}"
    what = (
        f"{len(passages)} passages to vectors, tokenising included, with {bert}. sentence-transformers runs"
        " `model.encode` (it sorts by length, batches of 32)"
        + ("; the plain loops take batches of 32 in file order." if case.ratios else ".")
    )
    why = (
        "The rest is work that is not a product with weights: mostly attention, whose products are small, and"
        " tokenising."
    )
    verdict = _share_verdict(figures[OURS].share, whole / flops, case.encoding_share, why)
    text = "\n\n".join([what, table(figures, ours=OURS, unit="tokens/s"), verdict, *profiled])
    title = "Encoding" if case == SMALL else f"Encoding, {case.layers} layers x {case.width}"
    return Section(title, text, _ratios(figures, ENCODING_BARS if case.ratios else {}))


def _cost_of_whole_layers(tower: Encoder, lengths: list[int]) -> float:
    """Operations of a tower that computes all tokens in its last layer too."""
    twin = copy.copy(tower)
    twin.fast = replace(twin.fast, prunes_last_layer=False)
    return TowerCost(twin).of(torch.tensor(lengths))


def _share_verdict(share: float, whole: float, wanted: float, why: str) -> str:
    """As it is read, like the bars of ratios."""
    reached = (
        f"Target: {wanted:.0%} of the peak. Reached: {share:.0%}, counting the operations that the vectors"
        " need"
    )
    counted = (
        f"({share * whole:.0%} if the last layer is counted for all tokens, as the other sides compute it)"
    )
    if round(share, 2) >= wanted:
        return f"{reached} {counted}."
    return f"{reached}, **missed** {counted}. {why}"


def _ratios(figures: Mapping[str, Figures], bars: Mapping[str, float]) -> tuple[Ratio, ...]:
    return tuple(
        Ratio.of(
            name,
            figures[OURS].ratios_to(side),
            next((bar for start, bar in bars.items() if name.startswith(start)), None),
        )
        for name, side in figures.items()
        if name != OURS
    )


def _profiled(
    competitors: Sides, figures: Mapping[str, Figures], units: float, device: torch.device
) -> list[str]:
    """Where our time goes and sentence-transformers'; of a CPU only, where operations take their time one
    after the other."""
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
            f"Matrix products over real tokens take {products:.0%} of our time. If everything else were free,"
            f" ours would be faster than {rival} by {most:.2f}; no more can be gained."
        )
    return parts


def _if_installed(make: Callable[[], Any]) -> dict[str, Any]:
    try:
        return {f"{RIVAL} {version(RIVAL)}": make()}
    except PackageNotFoundError:
        print('sentence-transformers is not installed and left out: pip install -e ".[bench]"')
        return {}
