"""Obsolete settings of DPR: accepted, so that its command lines run, with one warning that names the replacement."""

from __future__ import annotations

from collections.abc import Collection

_BY_REASON = {
    "started by torchrun, a job reads ranks, sizes and addresses from its environment": (
        "local_rank distributed_world_size distributed_port distributed_init_method"
    ),
    "one process serves one GPU; torchrun --nproc-per-node=N sets how many": "n_gpu",
    "vectors are gathered as tensors, without a buffer": "global_loss_buf_sz",
    "train.precision=fp16 or bf16": "fp16_opt_level",
    "the logged loss is the mean since the last log line; train.log_batch_step sets how many steps": "train.train_rolling_loss_step",
    "it never had an effect": "multi_q_encoder",
    "the checkpoint brings its tokenizer": "do_lower_case special_tokens",
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
"""Key -> what to use instead. A key that a job's own configuration has is never looked up here."""

_USED_BY_OTHERS = {
    "train.learning_rate": "lr",
    "train.precision=bf16": "bf16",
    "train.num_train_epochs": "epochs",
    "train.batch_size": "per_device_train_batch_size train_batch_size",
    "train.dev_batch_size": "per_device_eval_batch_size eval_batch_size",
    "train.eval_per_epoch, train.eval_every_steps": "eval_strategy evaluation_strategy",
    "train.eval_every_steps": "eval_steps",
    "train.save_every_steps": "save_steps",
    "train.keep_last": "save_total_limit",
    "train.log_batch_step": "logging_steps",
    "train.num_workers": "dataloader_num_workers",
    "train.best_metric": "metric_for_best_model",
    "train.load_best_at_end": "load_best_model_at_end",
    "train.lr_schedule": "lr_scheduler_type",
    "train.hard_negatives": "train_n_passages train_group_size num_negatives",
    "train.grad_cache_tokens": "gc_chunk_size",
    "tracking.tensorboard, tracking.wandb": "report_to",
    "output_dir (the same command resumes the run there), model_file, init": "resume_from_checkpoint",
    "encoder.pretrained_model_cfg, model_file": "model_name_or_path model_name model",
    "encoder.sequence_length": "max_seq_length max_length p_max_len passage_max_len",
    "encoder.question_length": "q_max_len query_max_len",
    "output_dir, out_file": "output out",
    "train_datasets": "train_file train_data train_dir",
    "dev_datasets": "dev_file eval_file validation_file",
    "ctx_src": "ctx_file",
    "ctx_src, ctx_datasets": "corpus",
    "qa_dataset": "qa_file queries",
    "encoded_ctx_files": "encoded_ctx_file",
    "n_docs": "n-docs top_k",
    "indexer.kind": "hnsw_index",
    "index_path": "save_or_load_index",
    "indexer.buffer_size": "index_buffer",
    "seed": "random_seed",
    "device": "device_map",
}
_NAMES_ELSEWHERE = {name: settings for settings, names in _USED_BY_OTHERS.items() for name in names.split()}
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
