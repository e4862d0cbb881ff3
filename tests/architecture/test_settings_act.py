"""No setting is without effect in silence: each states what it needs of others, and is refused without, or
stands below with the reason why it always has an effect.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dpr.core.errors import ConfigError
from dpr.core.setting_rules import Condition, Leaf, conditions_of
from dpr.core.settings import Settings, idle_settings, leaves
from tests.helpers.jobs import LaunchedJob, launched_jobs
from tests.helpers.needs import away, entries, fulfil, put, spoil

ALWAYS = {
    "what the command works on, or writes": (
        "resource resources train_datasets dev_datasets output_dir model_file suite set run run_file"
        " qa_dataset ctx_src ctx_datasets ctx_datatsets out_file out trec_run_file metrics_file search_folder"
        " curve_file qrels"
    ),
    "a catalogue: its entries are read where a name of theirs is given": "datasets ctx_sources suites",
    "where the work is done, and how": (
        "no_cuda rank_timeout_s cluster.kind precision train.precision attention encoder.attention "
        "encoder.packed batch_size batch_tokens chunk_size token_store train.token_store num_shards"
    ),
    "which rules hold, which others refer to": (
        "compat match hybrid indexer.kind to encoder_type skip_same_id"
    ),
    "how much is done": "n_docs num_questions step questions on_bad_row",
    "it decides vectors": (
        "encoder.pooling encoder.projection_dim encoder.normalize encoder.shared encoder.sequence_length"
        " encoder.question_length encoder.dpr_trailing_sep encoder.append_eos encoder.adapter"
        " encoder.dimensions encoder.pretrained_model_cfg encoder.query_prompt"
        " encoder.passage_prompt encoder.prompts encoder.title_template encoder.plain_apostrophes"
        " special_tokens dimensions out_dtype"
    ),
    "training and validation compare scores by it": (
        "loss.temperature loss.candidates train.validation indexer.target_recall"
    ),
    "refused by the bounds of num_shards": "shard_id",
}


def cases(*, stated: bool) -> Iterator[tuple[LaunchedJob, str]]:
    """The keys of every command that state, or do not state, what they need of another setting of the
    command."""
    for job in launched_jobs():
        known = leaves(job.config_class())
        for key in known:
            if bool(list(breakable(key, known))) == stated:
                yield job, key


def breakable(key: str, known: dict[str, Leaf]) -> Iterator[tuple[bool, list[Condition]]]:
    """The rules of ``key`` that can be broken: whether it requires or excludes, and the conditions on
    settings that there are."""
    for is_required, conditions in conditions_of(key, known):
        there = [condition for condition in conditions if condition.leaf is not None and condition.key != key]
        if there and not (is_required and any(condition.leaf is None for condition in conditions)):
            yield is_required, there


def test_every_setting_states_what_it_needs_or_always_has_an_effect() -> None:
    silent = {key for _, key in cases(stated=False)}
    assert silent == {key for keys in ALWAYS.values() for key in keys.split()}


@pytest.mark.parametrize(
    ("job", "key"), list(cases(stated=True)), ids=lambda value: getattr(value, "command", value)
)
def test_a_setting_without_effect_is_refused(job: LaunchedJob, key: str) -> None:
    for index, (is_required, _) in enumerate(breakable(key, leaves(job.config_class()))):
        config: Settings = job.config_class()
        put(config, key, away(entries(job.config_class)[key], leaves(config)[key]))
        _, conditions = list(breakable(key, leaves(config)))[index]
        for condition in conditions:
            (spoil if is_required else fulfil)(config, condition)
        sentence = idle_settings(config)[key]
        assert sentence.startswith(f"{key}=")
        assert any(other in sentence for other in leaves(config).keys() - {key})
        with pytest.raises(ConfigError):
            config.check()
