"""Ladder settings -> stages, each one of the other commands with its settings."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dpr.assembly.sources import NamedSource, resolve_training_files
from dpr.core.errors import ConfigError
from dpr.core.logs import get_logger
from dpr.formats.checkpoints import RUN_FILE
from dpr.formats.durable import read_json
from dpr.ladder.climb import SETTINGS_FILE, climb, plan_lines
from dpr.ladder.settings import LadderConfig
from dpr.ladder.stages import Stage
from dpr.ladder.summary import Round, summarize
from dpr.ladder.training import Prefixes, data_set_entry, deciding, differing, encoding_prefixes, existing, train_settings
from dpr.training.command_settings import BiEncoderTrainConfig

logger = get_logger(__name__)

VECTORS = "vectors_0"
OWN_ENTRY = "of_the_ladder"  # catalogue entry of the corpus or the questions, for a command whose setting it is
_SCORE_RULES = ("max_relative_score", "absolute_margin")  # of the model's scores; BM25's are of another kind


def run(config: LadderConfig) -> float | None:
    """Goes through all stages, or prints them with ``ladder.plan``. Returns the best validation value of the last round."""
    if "LOCAL_RANK" in os.environ or {"RANK", "WORLD_SIZE"} <= os.environ.keys():
        raise ConfigError("dpr ladder starts its own processes; start it without torchrun, with ladder.processes=N")
    builder = LadderBuilder(config)
    stages, rounds = builder.build()
    if config.ladder.plan:
        print("\n".join(plan_lines(stages)))
        return None
    climb(stages, builder.folder, overwrite=config.ladder.overwrite)
    return summarize(rounds, builder.folder, mode=config.ladder.mode)


class LadderBuilder:
    """Makes the stages that the settings describe, in order.

    Raises:
        ConfigError: a data set or file is missing, or cannot be mined for.
    """

    def __init__(self, config: LadderConfig) -> None:
        self.config = config
        self.folder = Path(str(config.output_dir))
        self.corpus = existing("corpus", str(config.corpus))
        self.sources = resolve_training_files(config.train_datasets, config.datasets)
        for source in self.sources:
            _check_can_be_mined(source)
        self.dev_files = [file for source in resolve_training_files(config.dev_datasets, config.datasets) for file in source.files]
        self.continues = config.ladder.mode == "continue"
        self.prefixes = Prefixes(self.sources, of_questions_asked=config.ladder.questions is not None)
        self.stages: list[Stage] = []
        self.files: dict[str, dict[str, Stage]] = {}
        """Training files so far: by what mined them, and by data set, the stages that make them; none for the user's own files."""

    def build(self) -> tuple[list[Stage], list[Round]]:
        """The stages, and what each round consists of."""
        config, rounds = self.config.ladder, []
        if config.bm25:
            self.files["bm25"] = {source.name: self._add(self._mine_bm25(source)) for source in self.sources}
        else:
            self.files[""] = {}
        for number in range(1, config.rounds + 1):
            train = self._add(self._train(number))
            is_last = number == config.rounds
            evaluation = None
            if config.questions or not is_last:
                embeds = {prefix: self._add(self._embed(number, train, prefix)) for prefix in self.prefixes.of_passages}
                if config.questions:
                    evaluation = self._add(self._evaluate(number, train, next(iter(embeds.values()))))
                if not is_last:
                    mined = {
                        source.name: self._add(self._mine_dense(number, source, train, embeds[source.options.passage_prefix or ""]))
                        for source in self.sources
                    }
                    self.files[f"mine-{number}"] = mined
            rounds.append(Round(number, train, evaluation))
        return self.stages, rounds

    def _add(self, stage: Stage) -> Stage:
        self.stages.append(stage)
        return stage

    def _name(self, what: str, source: NamedSource) -> str:
        return what if len(self.sources) == 1 else f"{what}-{source.name}"

    def _mine_bm25(self, source: NamedSource) -> Stage:
        common, own = asdict(self.config.mine), asdict(self.config.bm25)
        settings = {f"mine.{key}": value for key, value in common.items() if own.get(key) is None and key not in _SCORE_RULES}
        settings |= {f"bm25.{key}": value for key, value in own.items() if value is not None}
        name = self._name("bm25", source)
        return self._mining_stage(name, source, settings, what=f"BM25 negatives for {source.name}")

    def _mine_dense(self, number: int, source: NamedSource, train: Stage, embed: Stage) -> Stage:
        name = self._name(f"mine-{number}", source)
        settings = {f"mine.{key}": value for key, value in asdict(self.config.mine).items()} | encoding_prefixes(source)
        what = f"negatives for {source.name} by the model of {train.name}"
        return self._mining_stage(name, source, settings, what=what, model=train, embed=embed)

    def _mining_stage(
        self,
        name: str,
        source: NamedSource,
        settings: dict[str, Any],
        *,
        what: str,
        model: Stage | None = None,
        embed: Stage | None = None,
    ) -> Stage:
        config, folder = self.config, self.folder / name
        base = self.files["bm25"][source.name] if model is not None and config.ladder.bm25 else None
        files = source.files if base is None else [_mined_file(base, source.name)]
        given: dict[str, Any] = {"corpus": config.corpus, "out": _mined_file_in(folder, source.name)}
        given |= {"on_bad_row": config.on_bad_row, "max_bad_rows": config.max_bad_rows}
        given |= {key.partition(".")[2]: value for key, value in settings.items()}
        if model is not None or config.mine.cross_encoder is not None:
            given |= {"precision": config.train.precision, "device": "cpu" if config.no_cuda else config.device}

        def command() -> list[str]:
            found = {} if model is None or embed is None else {"model_file": self._model_of(model), "vectors": embed.folder / VECTORS}
            pairs = [f"{key}={_plain(value)}" for key, value in {**given, **found}.items() if value is not None]
            return ["mine", *map(str, files), *pairs, *(self._pooling() if found else [])]

        inputs: dict[str, Sequence[Path]] = {"corpus": [self.corpus], **({"train_datasets": source.files} if base is None else {})}
        if config.mine.cross_encoder is not None:
            inputs["mine.cross_encoder"] = [existing("mine.cross_encoder", config.mine.cross_encoder)]
        return Stage(
            name=name,
            folder=folder,
            what=what,
            command=command,
            settings={key: value for key, value in settings.items() if key not in ("mine.processes", "mine.cross_encoder")},
            outputs=lambda: [f"{source.name}.jsonl", f"{source.name}.jsonl.audit.json"],
            inputs=inputs,
            after=[stage.name for stage in (base, model, embed) if stage is not None],
        )

    def _train(self, number: int) -> Stage:
        config, name = self.config, f"train-{number}"
        folder = self.folder / name
        used = list(self.files)[-1:] if self.continues or not config.ladder.keep_earlier else list(self.files)
        entries: dict[str, Any] = {}
        places: list[int] = []
        for place, source in enumerate(self.sources):
            for label in used:
                stage = self.files[label].get(source.name)
                # A run that goes on has to find its data set under the same name.
                key = source.name if self.continues or stage is None else f"{source.name}_{label}"
                entries[key] = data_set_entry(source, None if stage is None else _mined_file(stage, source.name))
                places.append(place)
        before = self.stages_named(f"train-{number - 1}") if self.continues and number > 1 else None
        train = train_settings(config, entries, places, output_dir=folder, processes=config.ladder.processes)
        if self.continues:
            train.train = replace(train.train, stop_at_epoch=config.ladder.stop_epochs(config.train.num_train_epochs)[number - 1])
            if before is not None:
                train = replace(train, init="continue", model_file=str(before.folder))
        files = [file for source in self.sources for file in source.files] if "" in used else []
        given = {"train_datasets": files, "dev_datasets": self.dev_files, **self._model_inputs(train, before)}
        return Stage(
            name=name,
            folder=folder,
            what=f"{'going on with' if before else 'training on'} {', '.join(entries)}",
            command=lambda: ["train", "--config-path", str(folder), "--config-name", Path(SETTINGS_FILE).stem],
            settings=deciding(train),
            outputs=lambda: _trained_files(folder),
            inputs={key: paths for key, paths in given.items() if paths},
            after=[stage.name for label in used for stage in self.files[label].values()] + ([before.name] if before else []),
            settings_file={"defaults": ["biencoder_train_cfg_schema", "_self_"], **differing(train, BiEncoderTrainConfig())},
            processes=config.ladder.processes,
            is_training=True,
        )

    def _embed(self, number: int, train: Stage, prefix: str) -> Stage:
        owner = self.prefixes.of_passages[prefix]
        folder = self.folder / (f"embed-{number}" if len(self.prefixes.of_passages) == 1 else f"embed-{number}-{owner}")
        corpus = [f"ctx_src={self.config.corpus}"]
        if prefix:
            corpus = [f"ctx_src={OWN_ENTRY}", f"ctx_sources.{OWN_ENTRY}.file={self.config.corpus}"]
            corpus += [f"ctx_sources.{OWN_ENTRY}.passage_prefix={prefix}"]
        return Stage(
            name=folder.name,
            folder=folder,
            what=f"the corpus by the model of {train.name}",
            command=lambda: [
                "embed",
                f"model_file={self._model_of(train)}",
                *self._pooling(),
                *corpus,
                f"out_file={folder / 'vectors'}",
                f"precision={self.config.train.precision}",
                *self._device(),
            ],
            settings={"train.precision": self.config.train.precision} | ({"passage_prefix": prefix} if prefix else {}),
            outputs=lambda: [VECTORS],
            inputs={"corpus": [self.corpus]},
            after=[train.name],
            processes=self.config.ladder.processes,
        )

    def _evaluate(self, number: int, train: Stage, embed: Stage) -> Stage:
        folder, ladder = self.folder / f"evaluate-{number}", self.config.ladder
        inputs = {"corpus": [self.corpus], "ladder.questions": [existing("ladder.questions", str(ladder.questions))]}
        if ladder.qrels is not None:
            inputs["ladder.qrels"] = [existing("ladder.qrels", ladder.qrels)]
        questions, prefix = [f"qa_dataset={ladder.questions}"], self.prefixes.of_questions
        if prefix:
            questions = [f"qa_dataset={OWN_ENTRY}", f"datasets.{OWN_ENTRY}.file={ladder.questions}"]
            questions += [f"datasets.{OWN_ENTRY}.query_prefix={prefix}"]
        return Stage(
            name=folder.name,
            folder=folder,
            what=f"retrieval by the model of {train.name}",
            command=lambda: [
                "retrieve",
                f"model_file={self._model_of(train)}",
                *self._pooling(),
                *questions,
                *([] if ladder.qrels is None else [f"qrels={ladder.qrels}"]),
                f"ctx_datasets={self.config.corpus}",
                f"encoded_ctx_files={embed.folder / VECTORS}",
                f"metrics_file={folder / 'metrics.json'}",
                *self._device(),
            ],
            settings={"query_prefix": prefix} if prefix else {},
            outputs=lambda: ["metrics.json"],
            inputs=inputs,
            after=[train.name, embed.name],
        )

    def stages_named(self, name: str) -> Stage:
        """The stage of that name, which is there already."""
        return next(stage for stage in self.stages if stage.name == name)

    def _model_of(self, train: Stage) -> Path:
        """In mode fresh the run, which stands for its best checkpoint; in mode continue the checkpoint that the run goes on from."""
        file = train.folder / RUN_FILE
        if not self.continues or not file.is_file():
            return train.folder
        return train.folder / str(read_json(file)["last_checkpoint"])

    def _pooling(self) -> list[str]:
        """Checkpoints do not decide which code runs, so that every stage is told."""
        name = self.config.encoder.pooling
        return [f"encoder.pooling={name}"] if ":" in name else []

    def _device(self) -> list[str]:
        named = [] if self.config.device is None else [f"device={self.config.device}"]
        return [*named, *(["no_cuda=true"] if self.config.no_cuda else [])]

    def _model_inputs(self, train: BiEncoderTrainConfig, before: Stage | None) -> dict[str, Sequence[Path]]:
        """Folders and files that the towers are made from; names of published models are settings."""
        named: dict[str, str | None] = {"encoder.pretrained_model_cfg": train.encoder.pretrained_model_cfg}
        if before is None:
            named["model_file"] = train.model_file
        return {key: [Path(value)] for key, value in named.items() if value is not None and Path(value).exists()}


def _check_can_be_mined(source: NamedSource) -> None:
    options = source.options
    if options.reader is not None:
        raise ConfigError(f"datasets.{source.name}.reader: negatives are mined for files, not for a user-defined class")
    for key in ("query_special_suffix", "selector"):
        if getattr(options, key) is not None:
            logger.warning("datasets.%s.%s applies in training only; the ladder embeds and mines without it", source.name, key)


def _mined_file(stage: Stage, name: str) -> Path:
    return _mined_file_in(stage.folder, name)


def _mined_file_in(folder: Path, name: str) -> Path:
    return folder / f"{name}.jsonl"


def _trained_files(folder: Path) -> list[str]:
    run = read_json(folder / RUN_FILE)
    kept = {run[key] for key in ("best_checkpoint", "last_checkpoint") if run.get(key)}
    return [*sorted(kept), "metrics.json"]


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
