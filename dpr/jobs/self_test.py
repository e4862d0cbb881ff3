"""The checks of ``dpr doctor --deep``: a small model is made, trained, resumed and searched with, in a temporary folder."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from dpr.core.records import Passage, TrainingSample
from dpr.data.training_data import TrainingData
from dpr.indexer.exact import ExactIndex
from dpr.models.biencoder import BiEncoder, TowerOptions
from dpr.models.settings import EncoderSettings
from dpr.preparation.new_encoder import EncoderShape, write_encoder
from dpr.storage.durable import verify_folder
from dpr.training.metrics import matrix_peak
from dpr.training.trainer import BiEncoderTrainer

_WORDS = "amber birch cedar delta ember fjord grove heath inlet juniper knoll larch".split()


class _Colours(TrainingData):
    """Questions that occur word for word in their passage."""

    name = "self-test"

    def __len__(self) -> int:
        return len(_WORDS)

    def __getitem__(self, row: int) -> TrainingSample:
        return TrainingSample(_WORDS[row], (Passage(f"{_WORDS[row]} and {_WORDS[row]} again"),))


def backends() -> list[str]:
    """Devices and libraries that torch found, and the speed of each device."""
    lines = [f"CPU: {torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}"]
    for number in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(number)
        lines.append(f"cuda:{number}: {facts.name}, {facts.total_memory / 1e9:.0f} GB, bf16 {torch.cuda.is_bf16_supported()}")
    if not torch.cuda.is_available():
        lines.append("CUDA: none that torch can use")
    groups = [name for name, there in (("gloo", dist.is_gloo_available()), ("nccl", dist.is_nccl_available())) if there]
    lines.append(f"groups of processes: {', '.join(groups) or 'none'}")
    devices = [torch.device("cpu"), *(torch.device("cuda", number) for number in range(torch.cuda.device_count()))]
    lines += [f"fp32 matrix product on {device}: {matrix_peak(device, torch.float32) / 1e9:.0f} GFLOP/s" for device in devices]
    return lines


def checks() -> Iterator[tuple[str, str | None]]:
    """Name of each check and its error, None if it passed."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with tempfile.TemporaryDirectory(prefix="dpr-doctor-") as folder:
        test = _SelfTest(Path(folder), device)
        for name, check in (
            ("an encoder is made and packed", test.encoder),
            (f"training on {device}", test.training),
            ("the checkpoint is whole and the run resumes", test.resuming),
            ("vectors find what they were trained to find", test.search),
        ):
            try:
                yield name, check()
            except Exception as error:
                yield name, f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0]}"


class _SelfTest:
    """Each check needs the ones before it."""

    def __init__(self, folder: Path, device: str) -> None:
        self._encoder, self._run, self._device = folder / "encoder", folder / "run", device

    def _model(self, *, packed: bool = True) -> BiEncoder:
        torch.manual_seed(0)
        settings = EncoderSettings(sequence_length=16, shared=True, pooling="mean")
        options = TowerOptions(packed=packed)
        model = BiEncoder.from_pretrained(str(self._encoder), settings, pretrained=False, dropout=0.0, options=options)
        return model.to(self._device)

    def encoder(self) -> str | None:
        texts = [f"{word} and again" for word in _WORDS]
        write_encoder(self._encoder, lambda: texts, shape=EncoderShape(hidden_size=64, max_positions=16, vocab_size=64, num_unused=2))
        model = self._model()
        if not model.question_model.is_packed:
            return "the encoder cannot be packed; batches would be padded"
        difference = np.abs(model.encode_questions(texts) - self._model(packed=False).encode_questions(texts)).max()
        return None if difference < 1e-4 else f"packed and padded vectors differ by {difference:.1g}"

    def _trainer(self, max_steps: int) -> BiEncoderTrainer:
        return BiEncoderTrainer(
            self._model(),
            [_Colours()],
            output_dir=self._run,
            batch_size=12,
            num_train_epochs=max_steps,
            learning_rate=3e-3,
            hard_negatives=0,
            num_workers=1,
        )

    def training(self) -> str | None:
        trainer = self._trainer(30)
        trainer.train()
        return None if trainer.progress.step == 30 else f"it ended at step {trainer.progress.step} of 30"

    def resuming(self) -> str | None:
        trainer = self._trainer(40)
        folder = trainer.checkpoints.newest()
        if folder is None or (problems := verify_folder(folder)):
            return "no checkpoint" if folder is None else "; ".join(problems)
        if trainer.resume().step != 30:
            return f"it resumed from step {trainer.progress.step} instead of 30"
        trainer.train()
        return None

    def search(self) -> str | None:
        model, data = BiEncoder.load(self._run, self._device), _Colours()
        passages = model.encode_passages([data[row].positives[0] for row in range(len(data))])
        _, ids_of = ExactIndex.from_arrays(_WORDS, passages).search(model.encode_questions(_WORDS), 1)
        right = sum(ids == [word] for ids, word in zip(ids_of, _WORDS, strict=True))
        return None if right >= len(_WORDS) - 1 else f"only {right} of {len(_WORDS)} questions found their passage"
