"""What earlier versions had: it is refused with one sentence that says what to do instead, and nothing else
of it is left."""

COMMANDS = {
    "tune-index": (
        "the recall of an index is measured when it is built, and said when it is opened (docs/indexes.md)"
    ),
    "push": (
        "hf upload USER/NAME FOLDER, of huggingface_hub, uploads a folder that dpr export wrote"
        " (docs/interop.md)"
    ),
    "ladder": "examples/rounds.sh trains, mines and trains again; rerun it to go on (docs/recipes.md)",
    "reproduce": (
        "python repro/run.py NAME, in a clone, runs a recipe of repro/*.yaml and compares"
        " (docs/reproduction.md)"
    ),
    "pretrain": (
        'dpr train "train_datasets=[{file: corpus.jsonl, pairs: mixed}]" trains on text alone'
        " (docs/pretraining.md)"
    ),
}
_OTHER_STORES = (
    "examples/vectors_to_jsonl.py writes vectors and passages as JSON lines, for any store (docs/interop.md)"
)
_ROUNDS = "examples/rounds.sh mines with a model and trains a new one, round after round (docs/recipes.md)"
_SAMPLE = (
    "sample=N searches the relevant passages and N others; its metrics are optimistic, and estimate nothing"
)
_BEST = "train.best_metric chooses the best checkpoint and ends the run"
SETTINGS = {
    "indexer.lists": 'indexer.factory="IVF4096,SQ8" says how many lists, and what they hold',
    "indexer.train_vectors": "an index is learned from 64 vectors for each of its lists, at least 16,384",
    "deep": "make test, in a clone, runs the whole way",
    "questions_by": "examples/write_questions.py writes questions with transformers",
    "train.renew_negatives": _ROUNDS,
    "train.merge_with_base": (
        "train.keep=better opens the start where no checkpoint is ahead of it; dpr merge looks between"
        " the two"
    ),
    "train.validation.negatives": _ROUNDS,
    "train.validation.hard_runs": _SAMPLE,
    "train.validation.hard_depth": _SAMPLE,
    "train.validation.keep_vectors": "after training, dpr embed model_file=<run> writes the same bytes",
    "encoder.residual_words": (
        "a static encoder (encoder=static) is the start from scratch that costs least (docs/training.md)"
    ),
    "encoder.pooling=bm25": (
        "encoder.pooling=idf_sqrt finds more once it is trained (docs/without_labels.md)"
    ),
    "encoder.bm25_k1": "encoder.pooling=bm25 is gone, which it was of",
    "encoder.bm25_b": "encoder.pooling=bm25 is gone, which it was of",
    "rows": (
        "rows of a static encoder begin with random numbers, which were better after training on two of three"
        " collections (docs/without_labels.md)"
    ),
    "init=continue": _ROUNDS,
    "workers": "dpr serve is one process; start it again on other ports, behind any proxy (docs/serving.md)",
    "open_timeout": "dpr serve waits until its indexes are open, and /readyz says when they are",
    "to=parquet": _OTHER_STORES,
    "to=faiss": _OTHER_STORES,
    "to=qdrant-jsonl": _OTHER_STORES,
    "to=milvus-parquet": _OTHER_STORES,
    "train.prefetch_batches": "four batches of each worker are kept ready; train.num_workers sets how many workers",
    "train.min_lr_ratio": "linear and cosine end at 0; train.lr_schedule=constant does not fall",
    "train.warmup_ratio": "a tenth of the run's steps is the default; train.warmup_steps sets another number",
    "train.most_skipped_steps": "five steps in a row without a finite gradient end the run",
    "train.tf32": "train.precision=bf16 is faster still",
    "train.eval_epochs": "train.eval_per_epoch and train.eval_every_steps say when, and the end is validated anyway",
    "train.early_stopping.metric": _BEST,
    "train.early_stopping.highest": _BEST,
    "train.load_best_at_end": "from Python, callbacks=[dpr.LoadBest()] does it; model_file=<run> opens the best",
    "tracking.wandb_mode": "WANDB_MODE=offline in the environment does it",
    "tracking.run_name": "the run is called as the last part of output_dir",
    "loss.dimension_weights": "all of loss.dimensions count alike",
    "cluster.retries": "a lost piece of work goes to another worker up to ten times",
    "drop_shared": "a word that its passage has elsewhere too is dropped with probability 0.5",
    "unused_slots": "a new vocabulary has 32 [unusedN] tokens",
    "encoder.projection_activation": "a model that has one states it; new models have none",
    "train.leave_out": (
        "from Python, BiEncoderTrainer(..., callbacks=[...], usual=False) runs with those callbacks alone"
    ),
}
"""By the key, or by ``key=value`` where a choice of a setting is gone."""
FILES = "version 0.1.0 may have written it, which commit 3ac8be9 reads"
"""The hint where files are not as this version writes them."""
