"""What a mistyped word may have meant, and what other programs' names are called here."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

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
    "seed": "random_seed",
    "device": "device_map",
    "device=cpu": "no_cuda",
    "model=model.to(device)": "device",
    "train_sets": "train_dataset train_datasets",
    "dev_sets": "eval_dataset dev_datasets",
    "metrics": "compute_metrics",
    "settings": "args",
}
_NAMES_ELSEWHERE = {name: settings for settings, names in _USED_BY_OTHERS.items() for name in names.split()}
"""Keys of other trainers, and flags of the first version of DPR, by the settings that do the same."""


def suggestion(word: str, choices: Iterable[str], *, also: Iterable[str] = (), otherwise: str = "") -> str:
    """``; did you mean a, b?`` with the choices most similar to ``word``, as a whole or by the part after the
    last dot, then ``also``.

    ``otherwise`` takes its place where there are none.
    """
    whole = difflib.SequenceMatcher(b=word.lower())
    leaf = difflib.SequenceMatcher(b=word.lower().rpartition(".")[2])

    def similarity(choice: str) -> float:
        whole.set_seq1(choice.lower())
        leaf.set_seq1(choice.lower().rpartition(".")[2])
        return max(whole.ratio(), leaf.ratio() * 0.95)

    scored = sorted(
        ((similarity(choice), choice) for choice in choices), key=lambda pair: (-pair[0], pair[1])
    )
    near = [choice for score, choice in scored[:3] if score >= 0.6] + list(also)
    return f"; did you mean {', '.join(near)}?" if near else otherwise


def same_elsewhere(key: str, known: Collection[str]) -> str:
    """The settings of this job for what another program calls ``key``, as a text; empty if there are none."""
    named = _NAMES_ELSEWHERE.get(key, _NAMES_ELSEWHERE.get(key.rpartition(".")[2], "")).split(", ")
    return ", ".join(name for name in named if name and name.partition(" ")[0].partition("=")[0] in known)
