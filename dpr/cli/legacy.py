"""Obsolete settings of DPR: accepted, so that its command lines run, with one warning that names the
replacement."""

from __future__ import annotations

from collections.abc import Collection

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
    "AdamW has those of DPR's recipes, 0.9 and 0.999": "train.adam_betas",
    "validation encodes 128 texts at a time": "train.val_av_rank_bsz",
    "the average rank is that of 10,000 questions at most, as in DPR's recipes": "train.val_av_rank_max_qs",
    "checkpoints are called dpr_biencoder.step<N>": "checkpoint_file_name",
    "files are memory-mapped, and all ranks shuffle all rows": "local_shards_dataloader",
    "model_file gives a new run its weights alone; a run found in output_dir goes on as it was": (
        "ignore_checkpoint_offset ignore_checkpoint_optimizer ignore_checkpoint_lr"
    ),
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


def with_original_defaults(overrides: list[str], known: Collection[str]) -> list[str]:
    """``compat=dpr`` stands for the original's defaults too, unless another ``train=`` is given."""
    if (
        "compat" not in known
        or "compat=dpr" not in overrides
        or any(override.startswith("train=") for override in overrides)
    ):
        return overrides
    return ["train=biencoder_default", *overrides]


def translate(key: str, value: str, known: Collection[str]) -> tuple[str | None, str] | None:
    """For an old key: the override that replaces it, if any, and the warning. None when the key is not an old
    one."""
    if key == "fp16":
        target = next((name for name in ("train.precision", "precision") if name in known), None)
        if value.lower() in ("true", "1", "yes") and target:
            return f"{target}=fp16", f"fp16={value} is read as {target}=fp16"
        return None, f"fp16={value} is ignored: " + (
            f"{target}=fp32, bf16 or fp16 decides" if target else "this job has no such choice"
        )
    if key.split(".")[0] == "encoder" and "encoder.encoder_model_type" not in known:
        return None, f"{key} is ignored: the checkpoint brings its encoder"
    if key in REPLACED:
        return None, f"{key} is ignored: {REPLACED[key]}"
    return None
