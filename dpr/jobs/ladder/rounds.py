"""Ladder settings -> stages, each one of the other commands with its settings -> a table of the rounds."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dpr.core.errors import ConfigError
from dpr.core.logs import get_logger
from dpr.evaluation.ranking_metrics import RETRIEVAL_COLUMNS, format_table
from dpr.formats.checkpoints import RUN_FILE, resolve_checkpoint
from dpr.jobs.ladder.climb import SETTINGS_FILE, climb, plan_lines
from dpr.jobs.ladder.settings import LadderConfig
from dpr.jobs.ladder.stages import RECORD, Stage
from dpr.jobs.ladder.training import data_set_entry, deciding, differing, train_settings, trained_files
from dpr.jobs.sources import NamedSource, resolve_training_files
from dpr.storage.durable import read_json, write_json
from dpr.training.command_settings import BiEncoderTrainConfig

logger = get_logger(__name__)

VECTORS = "vectors_0"
_ENTRY = "of_the_ladder"  # the catalogue entry of a file that is read with prefixes
_SCORE_RULES = ("max_relative_score", "absolute_margin")  # of the model's scores; BM25's are of another kind
FILE = "ladder.json"
COLUMNS = {
    "eval/nll_loss": "NLL",
    "eval/in_batch_acc": "in-batch acc.",
    "eval/avg_rank": "average rank",
    "best_value": "best",
    **RETRIEVAL_COLUMNS,
    "minutes": "minutes",
}


@dataclass(frozen=True)
class Round:
    """A training, and the evaluation of its model if one was asked for."""

    number: int
    train: Stage
    evaluation: Stage | None


def summarize(rounds: Sequence[Round], folder: Path, *, mode: str) -> float | None:
    """Prints a table of all rounds and writes ``ladder.json``; returns the best validation value of the last round."""
    reports = [_report(entry) for entry in rounds]
    lines = {f"{report['round']}: {report['trained']}": _metrics(report) for report in reports}
    print(format_table(lines, COLUMNS))
    summary = {"mode": mode, "rounds": reports}
    if not (folder / FILE).is_file() or read_json(folder / FILE) != summary:
        write_json(folder / FILE, summary)
    best = reports[-1]["dev"].get("best_value")
    return None if best is None else float(best)


def _report(entry: Round) -> dict[str, Any]:
    stages = [entry.train] + ([entry.evaluation] if entry.evaluation else [])
    report: dict[str, Any] = {
        "round": entry.number,
        "trained": entry.train.what,
        "model": str(resolve_checkpoint(entry.train.folder)),
        "dev": read_json(entry.train.folder / "metrics.json"),
        "seconds": {stage.name: read_json(stage.folder / RECORD)["seconds"] for stage in stages},
    }
    if entry.evaluation is not None:
        retrieved = read_json(entry.evaluation.folder / "metrics.json")
        report["retrieval"] = {"num_questions": retrieved["num_questions"], **retrieved["metrics"]}
    return report


def _metrics(report: dict[str, Any]) -> dict[str, float]:
    values = {**report["dev"], **report.get("retrieval", {}), "minutes": report["seconds"][f"train-{report['round']}"] / 60}
    return {name: float(values[name]) for name in COLUMNS if isinstance(values.get(name), int | float)}


def run(config: LadderConfig) -> float | None:
    """Runs all stages, or prints them with ``ladder.plan``. Returns the best validation value of the last round."""
    if "LOCAL_RANK" in os.environ or {"RANK", "WORLD_SIZE"} <= os.environ.keys():
        raise ConfigError("dpr ladder starts its own processes; start it without torchrun, with ladder.processes=N")
    builder = LadderBuilder(config)
    rounds = builder.build()
    if config.ladder.plan:
        print("\n".join(plan_lines(builder.stages)))
        return None
    climb(builder.stages, builder.folder, overwrite=config.ladder.overwrite)
    return summarize(rounds, builder.folder, mode=config.ladder.mode)


class LadderBuilder:
    """Makes the stages that the settings describe, in order.

    Raises:
        ConfigError: a data set or file is missing, or cannot be mined for.
    """

    def __init__(self, config: LadderConfig) -> None:
        self.config = config
        self.folder = Path(str(config.output_dir))
        self.corpus = {"corpus": [_existing("corpus", str(config.corpus))]}
        self.sources = resolve_training_files(config.train_datasets, config.datasets)
        self.passage_prefixes: dict[str, str] = {}
        """Each passage prefix, with the name of the first set that has it; the corpus is embedded with each."""
        for source in self.sources:
            _check_can_be_mined(source)
            self.passage_prefixes.setdefault(source.options.passage_prefix or "", source.name)
        self.dev_files = [file for source in resolve_training_files(config.dev_datasets, config.datasets) for file in source.files]
        self.continues = config.ladder.mode == "continue"
        self.query_prefixes = {source.options.before_questions() or "": source.name for source in self.sources}
        self.prompts = {source.options.prompt or "": source.name for source in self.sources}
        if config.ladder.questions is not None:
            self._check_prefixes_agree()
        self.pooling = [f"encoder.pooling={name}"] if ":" in (name := config.encoder.pooling) else []  # checkpoints never decide it
        self.device = [] if config.device is None else [f"device={config.device}"]
        self.device += ["no_cuda=true"] if config.no_cuda else []
        self.stages: list[Stage] = []
        self.files: dict[str, dict[str, Stage]] = {}
        """Training files so far: by what mined them, and by data set, the stages that make them; none for the user's own files."""

    def build(self) -> list[Round]:
        """Fills ``stages``; returns what each round consists of."""
        config, sources, rounds = self.config.ladder, self.sources, list[Round]()
        self.files["bm25" if config.bm25 else ""] = {source.name: self._mine_bm25(source) for source in sources if config.bm25}
        for number in range(1, config.rounds + 1):
            train = self._train(number, rounds[-1].train if rounds and self.continues else None)
            is_last, evaluation = number == config.rounds, None
            if config.questions or not is_last:
                embeds = {prefix: self._embed(number, train, prefix) for prefix in self.passage_prefixes}
                if config.questions:
                    evaluation = self._evaluate(number, train, next(iter(embeds.values())))
                if not is_last:
                    self.files[f"mine-{number}"] = {
                        source.name: self._mine_dense(number, source, train, embeds[source.options.passage_prefix or ""])
                        for source in sources
                    }
            rounds.append(Round(number, train, evaluation))
        return rounds

    def _stage(self, name: str, what: str, command: Callable[[], list[str]], **options: Any) -> Stage:
        self.stages.append(Stage(name=name, folder=self.folder / name, what=what, command=command, **options))
        return self.stages[-1]

    def _mine_bm25(self, source: NamedSource) -> Stage:
        own = {key: value for key, value in asdict(self.config.bm25).items() if value is not None}
        common = {key: value for key, value in asdict(self.config.mine).items() if key not in {*own, *_SCORE_RULES}}
        settings = {f"mine.{key}": value for key, value in common.items()} | {f"bm25.{key}": value for key, value in own.items()}
        return self._mine("bm25", source, settings, f"BM25 negatives for {source.name}")

    def _mine_dense(self, number: int, source: NamedSource, train: Stage, embed: Stage) -> Stage:
        options = source.options
        prefixes = {"query_prefix": options.before_questions(), "passage_prefix": options.passage_prefix, "prompt": options.prompt}
        given = asdict(self.config.mine) | {key: prefix for key, prefix in prefixes.items() if prefix}
        settings = {f"mine.{key}": value for key, value in given.items()}
        return self._mine(f"mine-{number}", source, settings, f"negatives for {source.name} by the model of {train.name}", train, embed)

    def _mine(
        self, label: str, source: NamedSource, settings: dict[str, Any], what: str, model: Stage | None = None, embed: Stage | None = None
    ) -> Stage:
        config, name = self.config, label if len(self.sources) == 1 else f"{label}-{source.name}"
        base = self.files["bm25"][source.name] if model is not None and config.ladder.bm25 else None
        files = source.files if base is None else [_mined_file(base, source)]
        out = f"{source.name}.jsonl"
        given: dict[str, Any] = {"corpus": config.corpus, "out": self.folder / name / out}
        given |= {"on_bad_row": config.on_bad_row, "max_bad_rows": config.max_bad_rows}
        given |= {key.partition(".")[2]: value for key, value in settings.items()}
        if model is not None or config.mine.cross_encoder is not None:
            given |= {"precision": config.train.precision, "device": config.device_or_cpu}

        def command() -> list[str]:
            trained = {} if model is None or embed is None else {"model_file": self._model_of(model), "vectors": embed.folder / VECTORS}
            pairs = {key: value for key, value in (given | trained).items() if value is not None}
            texts = {key: str(value).lower() if isinstance(value, bool) else value for key, value in pairs.items()}
            return ["mine", *map(str, files), *(f"{key}={text}" for key, text in texts.items()), *(self.pooling if trained else [])]

        inputs: dict[str, Sequence[Path]] = {**self.corpus, **({"train_datasets": source.files} if base is None else {})}
        if config.mine.cross_encoder is not None:
            inputs["mine.cross_encoder"] = [_existing("mine.cross_encoder", config.mine.cross_encoder)]
        return self._stage(
            name,
            what,
            command,
            settings={key: value for key, value in settings.items() if key not in ("mine.processes", "mine.cross_encoder")},
            outputs=lambda: [out, f"{out}.audit.json"],
            inputs=inputs,
            after=[stage.name for stage in (base, model, embed) if stage is not None],
        )

    def _train(self, number: int, before: Stage | None) -> Stage:
        """The training of a round; ``before`` is the one that it resumes."""
        config, name = self.config, f"train-{number}"
        folder = self.folder / name
        used = list(self.files)[-1:] if self.continues or not config.ladder.keep_earlier else list(self.files)
        entries: dict[str, Any] = {}
        places: list[int] = []
        for index, source in enumerate(self.sources):
            for label in used:
                stage = self.files[label].get(source.name)
                # A run that is resumed has to find its data set under the same name.
                key = source.name if self.continues or stage is None else f"{source.name}_{label}"
                entries[key] = data_set_entry(source, None if stage is None else _mined_file(stage, source))
                places.append(index)
        train = train_settings(config, entries, places, output_dir=folder, processes=config.ladder.processes)
        if self.continues:
            train.train = replace(train.train, stop_at_epoch=config.ladder.stop_epochs(config.train.num_train_epochs)[number - 1])
        if before is not None:
            train = replace(train, init="continue", model_file=str(before.folder))
        # Of what the towers are made from, files are inputs; names of published models are settings.
        model = {"encoder.pretrained_model_cfg": train.encoder.pretrained_model_cfg, "model_file": None if before else train.model_file}
        inputs = {key: [Path(value)] for key, value in model.items() if value is not None and Path(value).exists()}
        inputs |= {
            "dev_datasets": self.dev_files,
            "train_datasets": [file for source in self.sources if "" in used for file in source.files],
        }
        return self._stage(
            name,
            f"{'continuing on' if before else 'training on'} {', '.join(entries)}",
            lambda: ["train", "--config-path", str(folder), "--config-name", Path(SETTINGS_FILE).stem],
            settings=deciding(train),
            outputs=lambda: trained_files(folder),
            inputs={key: paths for key, paths in inputs.items() if paths},
            after=[stage.name for label in used for stage in self.files[label].values()] + ([before.name] if before else []),
            settings_file={"defaults": ["biencoder_train_cfg_schema", "_self_"], **differing(train, BiEncoderTrainConfig())},
            processes=config.ladder.processes,
            is_training=True,
        )

    def _embed(self, number: int, train: Stage, prefix: str) -> Stage:
        owner = "" if len(self.passage_prefixes) == 1 else f"-{self.passage_prefixes[prefix]}"
        folder, precision = self.folder / f"embed-{number}{owner}", f"precision={self.config.train.precision}"
        corpus = _file_arguments("ctx_src", str(self.config.corpus), "ctx_sources", passage_prefix=prefix)
        more = [*self.pooling, *corpus, f"out_file={folder / 'vectors'}", precision, *self.device]
        return self._stage(
            folder.name,
            f"the corpus by the model of {train.name}",
            lambda: ["embed", f"model_file={self._model_of(train)}", *more],
            settings={"train.precision": self.config.train.precision} | ({"passage_prefix": prefix} if prefix else {}),
            outputs=lambda: [VECTORS],
            inputs=self.corpus,
            after=[train.name],
            processes=self.config.ladder.processes,
        )

    def _evaluate(self, number: int, train: Stage, embed: Stage) -> Stage:
        name, ladder = f"evaluate-{number}", self.config.ladder
        form = {"query_prefix": next(iter(self.query_prefixes), ""), "prompt": next(iter(self.prompts), "")}
        files = {"ladder.questions": ladder.questions, "ladder.qrels": ladder.qrels}
        more = [*self.pooling, *_file_arguments("qa_dataset", str(ladder.questions), "datasets", **form)]
        more += [] if ladder.qrels is None else [f"qrels={ladder.qrels}"]
        more += [f"ctx_datasets={self.config.corpus}", f"encoded_ctx_files={embed.folder / VECTORS}"]
        more += [f"metrics_file={self.folder / name / 'metrics.json'}", *self.device]
        return self._stage(
            name,
            f"retrieval by the model of {train.name}",
            lambda: ["retrieve", f"model_file={self._model_of(train)}", *more],
            settings={key: value for key, value in form.items() if value},
            outputs=lambda: ["metrics.json"],
            inputs=self.corpus | {key: [_existing(key, file)] for key, file in files.items() if file is not None},
            after=[train.name, embed.name],
        )

    def _model_of(self, train: Stage) -> Path:
        """In mode fresh the run, which stands for its best checkpoint; in mode continue the checkpoint that is resumed."""
        file = train.folder / RUN_FILE
        return train.folder / str(read_json(file)["last_checkpoint"]) if self.continues and file.is_file() else train.folder

    def _check_prefixes_agree(self) -> None:
        shared = {"query_prefix": self.query_prefixes, "passage_prefix": self.passage_prefixes, "prompt": self.prompts}
        for key, sets in shared.items():
            if len(sets) > 1:
                which = ", ".join(f"{name} has {prefix!r}" for prefix, name in sets.items())
                raise ConfigError(f"ladder.questions: with which {key}? {which}; evaluate by hand with dpr retrieve, or give all sets one")


def _existing(key: str, path: str) -> Path:
    if not (file := Path(path).expanduser()).exists():
        raise ConfigError(f"{key}={path} does not exist")
    return file


def _check_can_be_mined(source: NamedSource) -> None:
    options = source.options
    if options.reader is not None:
        raise ConfigError(f"datasets.{source.name}.reader: negatives are mined for files, not for a user-defined class")
    if options.pairs is not None:
        hint = "dpr prepare-pairs rounds=N writes pairs as a file"
        raise ConfigError(f"datasets.{source.name}.pairs: negatives are mined for files, not for pairs cut in training; {hint}")
    for key in ("query_special_suffix", "selector"):
        if getattr(options, key) is not None:
            logger.warning("datasets.%s.%s applies in training only; the ladder embeds and mines without it", source.name, key)


def _file_arguments(key: str, file: str, catalogue: str, **options: str) -> list[str]:
    """``key=file``, or where an option is set, a catalogue entry with the file and the options."""
    given = {option: value for option, value in options.items() if value}
    entry = {"file": file} | given
    return (
        [f"{key}={_ENTRY}", *(f"{catalogue}.{_ENTRY}.{option}={value}" for option, value in entry.items())] if given else [f"{key}={file}"]
    )


def _mined_file(stage: Stage, source: NamedSource) -> Path:
    return stage.folder / f"{source.name}.jsonl"
