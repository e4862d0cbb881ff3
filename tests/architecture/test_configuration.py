"""Every YAML file composes, and everything that the documents ask a user to type exists."""

import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dpr.cli import keys
from dpr.cli.keys import conf_folder, group_options
from dpr.cli.launch import launch
from dpr.cli.main import COMMANDS
from dpr.core.settings import Settings, leaves, sections, settings, unused_keys
from dpr.data.settings import DataSetSettings
from dpr.embedding.settings import PassageSourceConfig
from dpr.preparation.settings import ResourceConfig
from dpr.retrieval.settings import QuestionSetConfig
from tests.architecture.source_files import REPOSITORY
from tests.helpers.jobs import LaunchedJob, launched_jobs
from tests.helpers.needs import put

CONF = conf_folder()
DOCUMENTS = [
    REPOSITORY / "README.md",
    REPOSITORY / "CONTRIBUTING.md",
    *sorted((REPOSITORY / "docs").glob("*.md")),
    *sorted((REPOSITORY / "benchmarks" / "results").glob("*.md")),
]


def option_overrides() -> list[tuple[LaunchedJob, str]]:
    """Every option of every group, with the first job that has a place for it."""
    jobs: dict[str, LaunchedJob] = {}
    for job in launched_jobs():
        places = {name for name in sections(job.config_class) if name} | {
            entry.key for entry in settings(job.config_class)
        }
        for group in sorted(places):
            for option in group_options(group, [CONF]):
                jobs.setdefault(f"{group}={option}", job)
    return [(job, override) for override, job in jobs.items()]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_its_settings_and_every_setting_has_help(command: str) -> None:
    assert [entry.key for entry in settings(COMMANDS[command].settings_class()) if not entry.doc] == []


@pytest.mark.parametrize("job", launched_jobs(), ids=lambda job: job.command)
def test_every_job_composes(job: LaunchedJob, capsys: pytest.CaptureFixture[str]) -> None:
    assert launch(job.config_name, job.config_class, lambda config: None, ["--cfg", "job"]) == 0, (
        capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("job", "override"), option_overrides(), ids=lambda value: getattr(value, "command", value)
)
def test_every_group_option_composes(
    job: LaunchedJob, override: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = launch(job.config_name, job.config_class, lambda config: None, [override, "--cfg", "job"])
    assert code == 0, capsys.readouterr().err


def test_every_yaml_file_belongs_to_a_job() -> None:
    roots = {job.config_name for job in launched_jobs()}
    used = {override.replace("=", "/") for _, override in option_overrides()}
    found = {path.relative_to(CONF).with_suffix("").as_posix() for path in CONF.rglob("*.yaml")}
    assert found - roots - used == set()


@pytest.mark.parametrize("kind", [DataSetSettings, PassageSourceConfig, QuestionSetConfig, ResourceConfig])
def test_every_option_of_a_catalogue_entry_has_help(kind: type) -> None:
    assert [entry.key for entry in settings(kind) if not entry.doc] == []


def test_documented_targets_and_scripts_exist() -> None:
    """Commands of dpr are looked at by tests/cli/test_documented_commands.py."""
    targets = set(re.findall(r"(?m)^([a-z-]+):", (REPOSITORY / "Makefile").read_text()))
    missing = []
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8").replace("\\\n", " ")
        for line in re.findall(r"(?m)^(?: {4}|)((?:make|bash) .+)$", text):
            program, *words = shlex.split(line, comments=True)
            if program == "make":
                missing += [
                    f"{document.name}: {word}" for word in words if "=" not in word and word not in targets
                ]
            elif not (REPOSITORY / words[0]).exists():
                missing.append(f"{document.name}: {words[0]}")
    assert not missing


@cache
def known_words() -> set[str]:
    words = set(keys.REPLACED) | {"fp16", "key"}
    for command in COMMANDS.values():
        words |= {entry.key for entry in settings(command.settings_class())} | {
            name for name in sections(command.settings_class()) if name
        }
    return words


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_settings_named_in_documents_exist(document: Path) -> None:
    """``key=value`` and ``section.key`` in code spans: the key is a setting of some job."""
    known = known_words()
    tops = {key.split(".")[0] for key in known if "." in key}
    catalogues = tuple(
        f"{entry.key}." for job in launched_jobs() for entry in settings(job.config_class) if entry.is_open
    )
    missing = []
    for span in re.findall(r"`([^`\n]+)`", document.read_text(encoding="utf-8")):
        for key, equals in re.findall(r"(?<![\w./*<-])([a-z]\w*(?:\.[a-z_]\w*)*)(=?)", span):
            is_setting = (equals and not set("({") & set(span) and " " not in span.partition("=")[0]) or (
                "." in key and key.split(".")[0] in tops
            )
            is_file = key.endswith((".py", ".md", ".yaml", ".json", ".jsonl", ".tsv", ".trec"))
            if is_setting and not is_file and key not in known and not key.startswith(catalogues):
                missing.append(f"{key} in `{span}`")
    assert not missing, "\n".join(missing)


MODEL = {"model_file": "runs/first"}
TRAINING = {"train_datasets": "train.json"}
CASES: list[tuple[str, dict[str, Any], str, str]] = [
    (
        "train",
        MODEL,
        "train.batch_size loss.kl_weight seed tracking.wandb encoder.dropout",
        "train.precision",
    ),
    ("train", MODEL, "encoder.pretrained do_lower_case", "loss.temperature"),
    (
        "train",
        MODEL | {"dev_datasets": "d"},
        "train.learning_rate",
        "train.hard_negatives train.dev_batch_size",
    ),
    ("train", TRAINING, "train.dev_batch_size train.eval_at_start train.keep", "train.batch_size seed"),
    ("train", TRAINING, "encoder.lora_rank loss.teacher_temperature", "encoder.pretrained train.num_workers"),
    ("train", TRAINING | {"encoder.adapter": "lora"}, "encoder.allow_other_prompts", "encoder.lora_rank"),
    ("train", TRAINING | {"loss.kl_weight": 0.5}, "loss.margin_mse_scale", "loss.teacher_temperature"),
    ("train", TRAINING | {"loss.nll_weight": 0.0}, "loss.guide", "loss.dimensions"),
    ("train", TRAINING | {"train.eval_every_steps": 9}, "train.eval_per_epoch", "train.eval_every_steps"),
    ("retrieve", {"indexer.kind": "bm25"}, "model_file encoder.pooling indexer.ef_search", "indexer.k1"),
    ("retrieve", {}, "indexer.k1 hybrid_weight hybrid_depth index_path", "model_file n_docs"),
    ("retrieve", {"hybrid": "linear"}, "tune_metric", "hybrid_weight indexer.k1 bm25_index_path"),
    ("retrieve", {"indexer.kind": "hnsw"}, "indexer.factory", "indexer.store_n index_path"),
    ("evaluate", {"run_file": "x"}, "n_docs systems data precision", "qrels"),
    ("evaluate", {"set": "x", "systems": ["bm25"]}, "model_file qrels", "bm25.k1 n_docs"),
    ("export", {"to": "lancedb"}, "model_file encoder.pooling", "vectors metadata table"),
    ("export", {"to": "onnx"}, "vectors allow_other_vectors", "model_file"),
    ("merge", {}, "weights metric", "tuned"),
    ("mine", {}, "vectors prompt precision encoder.pooling", "per_question processes"),
    ("mine", MODEL, "processes", "vectors precision"),
    ("score", {"cross_encoder": "x"}, "corpus hybrid_weight processes", "precision"),
    ("check-data", {}, "overwrite device", "strict"),
    ("prepare", {"sources": ["train.json"]}, "rounds words", "to question"),
    ("prepare", {"sources": ["corpus.tsv"], "pairs": "mixed"}, "to words question", "rounds"),
    ("download", {}, "output_dir", "resource"),
]


@pytest.mark.parametrize(("command", "values", "unused", "used"), CASES)
def test_what_does_nothing_is_known(command: str, values: dict[str, Any], unused: str, used: str) -> None:
    config: Settings = COMMANDS[command].settings_class()()
    for key, value in values.items():
        put(config, key, value)
    found = set(unused_keys(config))
    assert found >= set(unused.split())
    assert not found & {*used.split(), *values}


@pytest.mark.parametrize("command", COMMANDS)
def test_what_does_nothing_is_named_as_it_is_called(command: str) -> None:
    """A misspelt name would never be told."""
    config: Settings = COMMANDS[command].settings_class()()
    names = {*leaves(config), *(key.rpartition(".")[0] for key in leaves(config))}
    assert set(config.unused()) <= names
