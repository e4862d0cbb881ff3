"""Settings of ``dpr ladder``: those of the training runs, those of mining, and those of the rounds."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from dpr.core.errors import ConfigError
from dpr.core.settings import Settings, require_set, setting
from dpr.indexer.settings import Bm25Settings
from dpr.mining.settings import MiningSettings
from dpr.training.command_settings import BiEncoderTrainConfig


@dataclass
class MineConfig(MiningSettings):
    """What becomes a hard negative (docs/training_data.md), found by BM25 or by a model."""

    cross_encoder: str | None = None
    """Folder of a sequence classifier that is asked about what would become a negative."""
    processes: int = setting(1, unit="processes", least=1)
    """Processes that filter what was found."""


@dataclass
class Bm25Config(Bm25Settings):
    """Mining by BM25: its constants and score rules, and what differs from ``mine`` (absent = as there), within the same bounds."""

    per_question: int | None = None
    """Negatives per question, at most; absent = as in ``mine``."""
    from_rank: int | None = None
    """First rank to take from; absent = as in ``mine``."""
    to_rank: int | None = None
    """Last rank to take from; absent = as in ``mine``."""
    pick: str | None = None
    """top or sample; absent = as in ``mine``."""
    keep_existing: bool | None = None
    """Keep the hard negatives that the training data have; absent = as in ``mine``."""
    max_relative_score: float = 0.0
    """Highest share of the positive's BM25 score that a negative may have; 0 = any."""
    absolute_margin: float | None = None
    """Leave out what BM25 scores above the positive's score less this; absent = any."""


@dataclass
class RoundsConfig(Settings):
    """How many rounds there are, and how one follows another."""

    rounds: int = setting(2, least=1)
    """Trainings; negatives are mined with the model of each but the last."""
    mode: str = setting("fresh", choices=("fresh", "continue"))
    """fresh: each round trains a new model, on what all rounds so far have mined; continue: one run continues with renewed negatives."""
    bm25: bool = True
    """Start with negatives found by BM25; false: with those that the training data have."""
    keep_earlier: bool = setting(True, requires="mode=fresh")
    """Train on the files of earlier rounds too; false: on the last one only. mode=fresh."""
    every_epochs: int = setting(0, unit="epochs", least=0, requires="mode=continue")
    """Epochs from one renewal to the next; 0 = train.num_train_epochs in equal parts. mode=continue."""
    processes: int = setting(1, least=1)
    """Processes that train and embed, started by torchrun where there are several."""
    questions: str | None = None
    """Questions that every round's model is evaluated with, by dpr retrieve on the corpus."""
    qrels: str | None = setting(None, requires="questions")
    """Judgements for them; absent = by the answers in the file of questions."""
    overwrite: bool = False
    """Where a stage was made with other settings or data, remove its output and run it again."""
    plan: bool = False
    """Print the stages with their commands and states, and do nothing."""

    def stop_epochs(self, num_train_epochs: int) -> list[int]:
        """The epoch after which each round of mode=continue ends; 0, the end of the run, for the last."""
        rounds = range(1, self.rounds)
        return [self.every_epochs * number if self.every_epochs else num_train_epochs * number // self.rounds for number in rounds] + [0]

    def check_together(self, prefix: str) -> None:
        if self.rounds == 1 and not self.bm25:
            raise ConfigError("ladder.rounds=1 and ladder.bm25=false mine nothing; raise ladder.rounds, or use dpr train")


@dataclass
class LadderConfig(BiEncoderTrainConfig):
    """Trains, mines hard negatives with the model, and trains again, round after round. All settings of ``dpr train`` work as there. A
    killed ladder resumes when you rerun the same command."""

    corpus: str | None = None
    """Passages to mine from: TSV or JSON lines."""
    ladder: RoundsConfig = field(default_factory=RoundsConfig)
    mine: MineConfig = field(default_factory=MineConfig)
    bm25: Bm25Config = setting(Bm25Config, requires="ladder.bm25")

    def check_together(self, prefix: str) -> None:
        super().check_together(prefix)
        own = {key: value for key, value in vars(self.bm25).items() if value is not None and hasattr(self.mine, key)}
        replace(self.mine, **own).check_values("bm25.")
        require_set(self, {"train_datasets": "[train.jsonl]", "corpus": "corpus.tsv", "output_dir": "runs/ladder"})
        if self.train.dry_run:
            raise ConfigError("train.dry_run=true is for dpr train; ladder.plan=true shows the stages of a ladder")
        if self.init in ("resume", "continue") or self.resume != "auto":
            raise ConfigError("the ladder sets init and resume itself; leave resume out, and set init to scratch or weights only")
        if self.ladder.mode == "continue":
            self._check_continue()

    def _check_continue(self) -> None:
        train = self.train
        if train.max_steps:
            raise ConfigError("ladder.mode=continue counts in epochs; set train.max_steps=0 and train.num_train_epochs")
        if train.early_stopping.patience:
            raise ConfigError(
                "ladder.mode=continue and train.early_stopping are mutually exclusive, its schedule is that of all rounds; leave one out"
            )
        if train.stop_at_epoch:
            raise ConfigError("ladder.mode=continue sets train.stop_at_epoch for every round; use ladder.every_epochs")
        stops = self.ladder.stop_epochs(train.num_train_epochs)[:-1]
        if stops and not 1 <= stops[0] <= stops[-1] < train.num_train_epochs:
            rounds = f"ladder.rounds={self.ladder.rounds}" + (f" of ladder.every_epochs={stops[0]}" if self.ladder.every_epochs else "")
            raise ConfigError(
                f"train.num_train_epochs={train.num_train_epochs} are too few for {rounds}; every round takes at least one epoch"
            )
