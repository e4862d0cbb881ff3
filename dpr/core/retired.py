"""What earlier versions had: it is refused with one sentence that says what to do instead, and nothing else
of it is left."""

COMMANDS = {
    "prepare-folder": "dpr prepare FOLDER out=OUT does it",
    "prepare-pairs": "dpr prepare CORPUS pairs=mixed out=OUT does it",
    "tune-index": (
        "the recall of an index is measured when it is built, and said when it is opened (docs/search.md)"
    ),
    "push": (
        "hf upload USER/NAME FOLDER, of huggingface_hub, uploads a folder that dpr export wrote"
        " (docs/interop.md)"
    ),
    "ladder": "examples/rounds.sh trains, mines and trains again; rerun it to go on (docs/recipes.md)",
    "reproduce": (
        "python repro/run.py NAME, in a clone, runs a recipe of repro/*.yaml and compares"
        " (benchmarks/results/reproduction.md)"
    ),
    "pretrain": (
        'dpr train "train_datasets=[{file: corpus.jsonl, pairs: mixed}]" trains on text alone'
        " (benchmarks/results/pretraining.md)"
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
_SWEEP = "one command is one job; put the values into a loop of the shell (docs/training.md)"
_SERVE = "the limits of dpr serve are fixed (docs/search.md); a proxy in front can set lower ones"
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
        "a static encoder (encoder=static) is the start from scratch that costs least (docs/static_encoders.md)"
    ),
    "encoder.pooling=bm25": (
        "encoder.pooling=idf_sqrt finds more once it is trained (benchmarks/results/adapt.md)"
    ),
    "encoder.bm25_k1": "encoder.pooling=bm25 is gone, which it was of",
    "encoder.bm25_b": "encoder.pooling=bm25 is gone, which it was of",
    "rows": (
        "rows of a static encoder begin with random numbers, which were better after training on two of three"
        " collections (benchmarks/results/adapt.md)"
    ),
    "workers": "dpr serve is one process; start it again on other ports, behind any proxy (docs/search.md)",
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
        "from Python, BiEncoderTrainer(..., callbacks=[...], defaults=False) runs with those callbacks alone"
    ),
    "indexer.block_rows": "exact search compares 65,536 passages at a time",
    "indexer.buffer_size": "vectors are added to an index of faiss 50,000 at a time",
    "indexer.target_recall": "a build searches as many lists as reach 0.95; indexer.probes=N says another number",
    "hybrid_normalisation": "hybrid=linear takes min-max normalised scores, which lose least",
    "token_store": "dpr embed tokenises ahead of the model and keeps nothing; leave it out",
    "loss.hardness": "no gain was measured; dpr mine chooses hard negatives",
    "loss.false_negative_margin": "loss.guide masks negatives that another model takes for the positive",
    "loss.in_batch_negatives": "a term of your own (loss.terms) can compare a question with its own passages alone",
    "loss.positives": "the drawn positive is learned; datasets.NAME.shuffle_positives=true draws among all",
    "train.positives": "one positive is drawn for each question; datasets.NAME.shuffle_positives=true draws among all",
    "loss.kl_temperature": "loss.temperature divides the model's scores in every term",
    "loss.embedding_weight": "a teacher's vectors have weight 1; loss.nll_weight is beside that",
    "train.memory_budget_gb": "train.grad_cache_tokens=16384 holds any pool; train.dry_run=true tells the peak",
    "train.sharded_checkpoints": "the first process writes the whole checkpoint",
    "train.overfit_batches": "train on a file of some ten rows for many epochs",
    "train.sanity_validation": "train.eval_at_start=true validates before the first step",
    "train.export": "dpr export model_file=RUN to=FORMAT out=FOLDER writes the best checkpoint",
    "tracking.trackio": "tracking.tensorboard and wandb stay; train.callbacks takes a tracker of your own",
    "train.sampling.group_by_length": (
        "packed towers compute no padding; train.sampling.group_by_words=true groups by words (docs/training.md)"
    ),
    "encoder.token_frequencies": (
        "copy token_frequencies.json into the folder of encoder.pretrained_model_cfg (docs/static_encoders.md)"
    ),
    "encoder.pooling=mean_sqrt": (
        "encoder.pooling=mean gives the same direction; your own pooling is module:Class (docs/extending.md)"
    ),
    "negatives": "dpr mine adds negatives to training data",
    "heads": "a new encoder has about 64 numbers a head; from Python, EncoderShape(num_heads=...)",
    "most_suspects": "200 labels are listed at most, the most doubtful first",
    "serve": "dpr serve FOLDER metadata=file opens the page",
    "max_k": "1,000 passages per question and 100,000 in an answer",
    "max_question": "8,192 characters; a request holds 2 MiB",
    "to=pyserini": "to=sentence-transformers is what Pyserini's AutoQueryEncoder opens (docs/interop.md)",
    "precisions": "onnxruntime makes smaller graphs itself (docs/interop.md)",
    "onnx": 'sentence-transformers makes the graph itself: backend="onnx"; or to=onnx (docs/interop.md)',
    "check_texts": "encode them with both, as README.md of the exported folder says",
    "trec_runs": "TREC files are always written",
    "license": "write license: into the head of README.md",
    "-m": _SWEEP,
    "multirun": _SWEEP,
    "max_concurrent": _SERVE,
    "max_queries": _SERVE,
    "max_passages": _SERVE,
    "max_body": _SERVE,
    "pick": "training draws from the mined negatives of a row anew in every epoch; per_question=N mines more",
    "near_duplicate": "passages that share 80 % of their words are the same",
    "keep_answers": "passages that hold an answer are no negatives",
    "absolute_margin": "max_relative_score=0.95 leaves out what scores near the positive",
    "margin": "max_relative_score=0.95 leaves out what scores near the positive",
    "veto_above": "a cross-encoder leaves out what it gives a probability of 0.5 or more",
    "hybrid=rrf": "hybrid=linear loses least of all ways of fusing (docs/evaluation.md)",
    "to=transformers": "to=sentence-transformers writes what AutoModel and AutoTokenizer open, too (docs/interop.md)",
    "k1": "BM25 of mining has k1=0.9 and b=0.4",
    "b": "BM25 of mining has k1=0.9 and b=0.4",
    "indexer.candidates": "no index scores candidates again; indexer=ivf, or indexer=faiss indexer.factory=...",
    "results": "write figures into README.md of the exported folder",
    "encoder.lora_alpha": "it is twice encoder.lora_rank; from Python, EncoderSettings(lora_alpha=...)",
    "encoder.lora_targets": "all linear layers have an adapter; from Python, EncoderSettings(lora_targets=...)",
    "encoder.lora_dropout": "adapters have no dropout of their own",
    "cluster.cpus": "a worker has one CPU; cluster.workers limits how many work at a time",
    "cluster.gpus": "a worker has a GPU where the cluster has any; device=cpu takes none",
    "train.sampling.epoch_pools": (
        "an epoch has as many pools as its sets; train.max_steps and train.eval_every_steps count steps"
    ),
    "tracking.mlflow": "a callback with on_log and on_validate_end sends metrics anywhere (docs/extending.md)",
    "tracking.project": "WANDB_PROJECT in the environment names it",
    "train.validation.every": "every validation includes it",
    "train.metrics": "train.validation=module:Class measures what you like (docs/extending.md)",
    "train.best_is_highest": "more is better, except of losses and ranks; Validation.lower_is_better says otherwise",
    "train.early_stopping.min_delta": "from Python, callbacks=[dpr.EarlyStopping(min_delta=...)]",
    "init": (
        "encoder.pretrained=false starts from random weights; else a run starts from those of model_file, or of the"
        " encoder, and the same command resumes the run in output_dir"
    ),
    "out_texts": "trec_run_file= writes ids and scores alone, and needs no corpus",
    "out_dtype=binary": "out_dtype=int8 loses less; indexer.factory with RaBitQ makes codes of bits",
    "few": "where there are too few questions, the corpus alone is written",
    "held_back": "a tenth of the documents is held back; datasets.NAME.held_back says another share in training",
    "relabel": "labels on the list are dropped; its field 'instead' says what was found",
    "train.compile": "no gain was measured; leave it out",
    "train.validation.query_prefix": "encoder.query_prompt is stored with the model; prompt names one of its prompts",
    "train.validation.passage_prefix": "encoder.passage_prompt is stored with the model",
    "encoder.pooling=max": "encoder.pooling=mean, or your own pooling as module:Class (docs/extending.md)",
}
"""By the key, or by ``key=value`` where a choice of a setting is gone."""
FILES = "version 0.1.0 may have written it, which commit 3ac8be9 reads"
"""The hint where files are not as this version writes them."""
