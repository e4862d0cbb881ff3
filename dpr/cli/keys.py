"""Keys of a command line: settings of the command, options of a catalogue, groups of files, keys of the original
DPR, and mistyped ones."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from dpr.core.errors import ConfigError
from dpr.core.other_names import hint, name_here_of
from dpr.core.settings import Setting, suggestion

_SHOWN = 3
"""Problems that a message lists."""
_BY_REASON = {
    "started by torchrun, a job reads ranks, sizes and addresses from its environment": (
        "local_rank distributed_world_size distributed_port distributed_init_method"
    ),
    "one process serves one GPU; torchrun --nproc-per-node=N sets how many": "n_gpu",
    "vectors are gathered as tensors, without a buffer": "global_loss_buf_sz",
    "train.precision=fp16 or bf16": "fp16_opt_level",
    "the logged loss is the mean since the last log line; train.log_batch_step sets how many steps": (
        "train.train_rolling_loss_step"
    ),
    "it never had an effect": "multi_q_encoder",
    "hits are matched if there are answers or qrels; match=none turns this off": "validate_results",
    "answers are matched on all cores": "validation_workers",
    "datasets.NAME.selector sets the position of the question vector": "rep_token_pos",
    "checkpoints are called dpr_biencoder.step<N>": "checkpoint_file_name",
    "files are memory-mapped, and all ranks shuffle all rows": "local_shards_dataloader",
    "model_file gives a new run only the weights; a run found in output_dir is resumed unchanged": (
        "ignore_checkpoint_offset ignore_checkpoint_optimizer ignore_checkpoint_lr"
    ),
    "the checkpoint contains its tokenizer": "do_lower_case special_tokens",
    "encoder.pretrained_model_cfg=<folder> names the weights": "encoder.pretrained_file",
    "tables are not read; write their text as passages, one row of a TSV file each": (
        "tables_as_passages tables_chunk_sz tables_split_type validate_as_tables"
    ),
    "remote indexes are not supported; indexer=flat, hnsw or hnsw_sq searches on this machine": (
        "rpc_retriever_cfg_file rpc_index_id use_l2_conversion use_rpc_meta rpc_meta_compressed"
    ),
    "KILT output is not written; out_file= writes DPR's results": "kilt_out_file",
}
REPLACED = {key: reason for reason, keys in _BY_REASON.items() for key in keys.split()}
"""Replacements of old keys. A key that a job's own configuration has is never looked up here."""


def translate(key: str, value: str, known: Collection[str]) -> tuple[str | None, str] | None:
    """Returns, for an old key, the override that replaces it, if any, and the warning. Returns None if the
    key is not an old one."""
    if key == "fp16":
        target = next((name for name in ("train.precision", "precision") if name in known), None)
        if value.lower() in ("true", "1", "yes") and target:
            return f"{target}=fp16", f"fp16={value} is read as {target}=fp16"
        return None, f"fp16={value} is ignored: " + (
            f"{target}=fp32, bf16 or fp16 decides" if target else "this command has no such setting"
        )
    if key.split(".")[0] == "encoder" and "encoder.encoder_model_type" not in known:
        return None, f"{key} is ignored: the checkpoint contains its encoder"
    if key in REPLACED:
        return None, f"{key} is ignored: {REPLACED[key]}"
    return None


def conf_folder() -> Path:
    """Returns ``dpr/conf`` in an installed wheel, else ``conf`` beside the package (a clone or an editable
    install).

    Raises:
        ConfigError: neither is there, so the installation is incomplete.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "conf", package.parent / "conf"):
        if (folder / "biencoder_train_cfg.yaml").is_file():
            return folder
    raise ConfigError(
        f"no configuration files in {package / 'conf'} or {package.parent / 'conf'}; reinstall dpr"
    )


def group_options(group: str, folders: Sequence[Path]) -> list[str]:
    """Returns the names of the YAML files of a config group; empty if there is no such group."""
    return sorted({path.stem for folder in folders for path in (folder / group).glob("*.yaml")})


def check_keys(
    overrides: list[str],
    known: Mapping[str, Setting],
    folders: Sequence[Path] = (),
    *,
    program: str = "dpr COMMAND",
) -> tuple[list[str], list[str]]:
    """Returns the overrides to use and the warnings about old keys.

    Args:
        overrides: ``key=value`` tokens, with Hydra's ``+``, ``++`` and ``~`` in front where the user put
            them.
        known: every setting of the job by its dotted key.
        folders: folders that may contain config groups; none for a command whose configuration is not
            composed of files.
        program: name of the command in the message.

    Raises:
        ConfigError: unknown keys, or options that a group does not have, with the nearest valid ones.
    """
    kept = []
    warnings = []
    problems = []
    follows_flag = False
    for override in overrides:
        if override.startswith("="):
            raise ConfigError(f"{override}: write key=value without a space before =")
        sign = override[: len(override) - len(override.lstrip("+~"))]
        key, has_value, value = (part.strip() for part in override[len(sign) :].partition("="))
        section = any(name.startswith(key + ".") for name in known)
        is_option = any(entry.is_open and key.startswith(entry.key + ".") for entry in known.values())
        if has_value and not value and (key in known or is_option):
            problems.append(f"{key}= has no value; leave it out, or write {key}=null for none")
        value = value.strip("'\"")
        if folders and (key == "hydra" or key.startswith(("hydra.", "hydra/"))):
            kept.append(override)
        elif "=" not in override and sign != "~":
            if not follows_flag:
                problems.append(_no_value(override, known))
            # The next token is the flag's value.
            follows_flag = not follows_flag and bool(
                name_here_of(key, known) or any(name.endswith(f".{key}") for name in known)
            )
            continue
        elif folders and key not in known and (old := translate(key, value, known)):
            warnings.append(old[1])
            if old[0]:
                kept.append(old[0])
        elif group := group_options(key.partition("@")[0], folders):
            kept.append(override)
            is_name = (
                has_value and value != "null" and not value.startswith(("[", "{", "$")) and "," not in value
            )
            if is_name and value not in group:
                problems.append(
                    f"{key}={value}: no such"
                    f" option{suggestion(value, group, otherwise='; choose one of ' + ', '.join(group))}"
                )
        elif key in known or (section and sign == "~"):
            is_whole_catalogue = key in known and known[key].is_open and value.startswith("{") and not sign
            # The value that + adds is there already.
            kept.append("++" + override if is_whole_catalogue else override.lstrip("+"))
        elif is_option:
            # Catalogue entries may be new, which Hydra accepts only with ++.
            kept.append(override if sign else "++" + override)
        elif section:
            problems.append(
                f"{key} is a section; set one of its settings, e.g."
                f" {next(name for name in known if name.startswith(key + '.'))}=..."
            )
        else:
            here = name_here_of(key, known)
            problems.append(
                f"unknown setting {key}"
                + (f"; did you mean {here}?" if here else suggestion(key, known, otherwise=hint(key)))
            )
    if problems:
        lines = problems[:_SHOWN]
        if len(problems) > _SHOWN:
            lines.append(f"and {len(problems) - _SHOWN} more like these")
        if any(problem.startswith("unknown") for problem in problems):
            lines.append(f"{program} --help=all lists all settings")
        raise ConfigError("\n".join(lines))
    return kept, list(dict.fromkeys(warnings))


def _no_value(token: str, known: Mapping[str, Setting]) -> str:
    if token in known:
        return f"{token} needs a value: {token}=..."
    if here := name_here_of(token, known):
        return f"--{token} is not a flag here; settings read key=value: {re.split('[, =]', here)[0]}=..."
    taker = next((entry.key for entry in known.values() if entry.takes_texts), None)
    example = (
        f"; for a file, e.g. {taker}={token}"
        if taker and ("/" in token or "." in token)
        else suggestion(token, known, otherwise=hint(token))
    )
    return f"{token!r} is not a setting; settings read key=value" + example
