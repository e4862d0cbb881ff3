"""Obsolete settings of DPR: accepted, so that its command lines run, with one warning that names the replacement."""

from __future__ import annotations

from collections.abc import Collection

_LAUNCHER = "started by torchrun, a job reads ranks, sizes and addresses from its environment"
_NEVER_READ = "it never had an effect"
_REMOTE_INDEX = "remote indexes are not supported; indexer=flat, hnsw or hnsw_sq searches on this machine"
_TABLES = "tables are not read; write their text as passages, one row of a TSV file each"

REPLACED: dict[str, str] = {
    "local_rank": _LAUNCHER,
    "n_gpu": "one process serves one GPU; torchrun --nproc-per-node=N sets how many",
    "distributed_world_size": _LAUNCHER,
    "distributed_port": _LAUNCHER,
    "distributed_init_method": _LAUNCHER,
    "global_loss_buf_sz": "vectors are gathered as tensors, without a buffer",
    "fp16_opt_level": "train.precision=fp16 or bf16",
    "train.train_rolling_loss_step": "the logged loss is the mean since the last log line; train.log_batch_step sets how many steps",
    "multi_q_encoder": _NEVER_READ,
    "do_lower_case": "the checkpoint brings its tokenizer",
    "special_tokens": "the checkpoint brings its tokenizer",
    "encoder.pretrained_file": "encoder.pretrained_model_cfg=<folder> names the weights",
    "tables_as_passages": _TABLES,
    "tables_chunk_sz": _TABLES,
    "tables_split_type": _TABLES,
    "validate_as_tables": _TABLES,
    "rpc_retriever_cfg_file": _REMOTE_INDEX,
    "rpc_index_id": _REMOTE_INDEX,
    "use_l2_conversion": _REMOTE_INDEX,
    "use_rpc_meta": _REMOTE_INDEX,
    "rpc_meta_compressed": _REMOTE_INDEX,
    "kilt_out_file": "KILT output is not written; out_file= writes DPR's results",
}
"""Key -> what to use instead. A key that a job's own configuration has is never looked up here."""


_NAMES_ELSEWHERE: dict[str, str] = {
    "lr": "train.learning_rate",
    "bf16": "train.precision=bf16",
    "epochs": "train.num_train_epochs",
    "per_device_train_batch_size": "train.batch_size",
    "train_batch_size": "train.batch_size",
    "per_device_eval_batch_size": "train.dev_batch_size",
    "eval_batch_size": "train.dev_batch_size",
    "eval_strategy": "train.eval_per_epoch, train.eval_every_steps",
    "evaluation_strategy": "train.eval_per_epoch, train.eval_every_steps",
    "eval_steps": "train.eval_every_steps",
    "save_steps": "train.save_every_steps",
    "save_total_limit": "train.keep_last",
    "logging_steps": "train.log_batch_step",
    "dataloader_num_workers": "train.num_workers",
    "metric_for_best_model": "train.best_metric",
    "load_best_model_at_end": "train.load_best_at_end",
    "lr_scheduler_type": "train.lr_schedule",
    "train_n_passages": "train.hard_negatives",
    "train_group_size": "train.hard_negatives",
    "num_negatives": "train.hard_negatives",
    "gc_chunk_size": "train.grad_cache_tokens",
    "report_to": "tracking.tensorboard, tracking.wandb",
    "resume_from_checkpoint": "output_dir (the same command resumes the run there), model_file, init",
    "model_name_or_path": "encoder.pretrained_model_cfg, model_file",
    "model_name": "encoder.pretrained_model_cfg, model_file",
    "model": "encoder.pretrained_model_cfg, model_file",
    "max_seq_length": "encoder.sequence_length",
    "max_length": "encoder.sequence_length",
    "p_max_len": "encoder.sequence_length",
    "passage_max_len": "encoder.sequence_length",
    "q_max_len": "encoder.question_length",
    "query_max_len": "encoder.question_length",
    "output": "output_dir, out_file",
    "out": "output_dir, out_file",
    "train_file": "train_datasets",
    "train_data": "train_datasets",
    "train_dir": "train_datasets",
    "dev_file": "dev_datasets",
    "eval_file": "dev_datasets",
    "validation_file": "dev_datasets",
    "ctx_file": "ctx_src",
    "corpus": "ctx_src, ctx_datasets",
    "qa_file": "qa_dataset",
    "queries": "qa_dataset",
    "encoded_ctx_file": "encoded_ctx_files",
    "n-docs": "n_docs",
    "top_k": "n_docs",
    "hnsw_index": "indexer.kind",
    "save_or_load_index": "index_path",
    "index_buffer": "indexer.buffer_size",
    "random_seed": "seed",
    "device_map": "device",
}
"""Keys of other trainers, and flags of the first version of DPR, by the settings that do the same."""


def same_elsewhere(key: str, known: Collection[str]) -> str:
    """The settings of this job for what another program calls ``key``, as a text; empty if there are none."""
    named = _NAMES_ELSEWHERE.get(key, _NAMES_ELSEWHERE.get(key.rpartition(".")[2], "")).split(", ")
    return ", ".join(name for name in named if name and name.partition(" ")[0].partition("=")[0] in known)


def with_original_defaults(overrides: list[str], known: Collection[str]) -> list[str]:
    """``compat=dpr`` stands for the original's defaults too, unless another ``train=`` is given."""
    if "compat" not in known or "compat=dpr" not in overrides or any(override.startswith("train=") for override in overrides):
        return overrides
    return ["train=biencoder_default", *overrides]


def translate(key: str, value: str, known: Collection[str]) -> tuple[str | None, str] | None:
    """For an old key: the override that replaces it, if any, and the warning. None when the key is not an old one."""
    if key == "fp16":
        target = next((name for name in ("train.precision", "precision") if name in known), None)
        if value.lower() in ("true", "1", "yes") and target:
            return f"{target}=fp16", f"fp16={value} is read as {target}=fp16"
        return None, f"fp16={value} is ignored: " + (f"{target}=fp32, bf16 or fp16 decides" if target else "this job has no such choice")
    if key.split(".")[0] == "encoder" and "encoder.encoder_model_type" not in known:
        return None, f"{key} is ignored: the checkpoint brings its encoder"
    if key in REPLACED:
        return None, f"{key} is ignored: {REPLACED[key]}"
    return None
