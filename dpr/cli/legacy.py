"""DPR's settings whose meaning is gone: accepted, so that its command lines run, with one warning that names what replaces them."""

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


def with_original_defaults(overrides: list[str], known: Collection[str]) -> list[str]:
    """``compat=dpr`` stands for the original's defaults too, unless another ``train=`` is given."""
    if "compat" not in known or "compat=dpr" not in overrides or any(override.startswith("train=") for override in overrides):
        return overrides
    return ["train=biencoder_default", *overrides]


def translate(key: str, value: str, known: Collection[str]) -> tuple[str | None, str] | None:
    """For an old key: the override that takes its place (None: nothing does) and the warning. None when the key is not an old one."""
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
