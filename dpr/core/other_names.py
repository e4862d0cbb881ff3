"""Names and settings of other libraries that users may look for, each with the line to write here instead."""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Collection, Container, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

_LINES = {
    "save_pretrained": "model.save(folder); dpr.to_sentence_transformer(model).save_pretrained(folder) for sentence-transformers",
    "push_to_hub save_to_hub hub_model_id hub_strategy hub_token hub_private_repo": "model.save(folder), then hf upload USER/NAME FOLDER",
    "export backend": "model.save(folder), then dpr export model_file=FOLDER to=onnx out=OTHER",
    "finetune fine-tune fine_tune": "dpr train train=finetune model=MODEL train_datasets=train.jsonl out=FOLDER",
    "train fit old_fit Trainer TrainingArguments SentenceTransformerTrainer SentenceTransformerTrainingArguments": (
        "BiEncoderTrainer(model, train_sets=..., output_dir=..., batch_size=32).train() trains"
    ),
    "CrossEncoder SparseEncoder": (
        "sentence-transformers trains these; mine_hard_negatives(..., cross_encoder=FOLDER) scores with a cross-encoder"
    ),
    "SentenceTransformer": (
        "dpr.BiEncoder(name_or_folder) opens a model of sentence-transformers,"
        " dpr.BiEncoder.from_sentence_transformers(model) one in memory"
    ),
    "InputExample": "a training set may be a list of (question, passage), with negatives behind them",
    "tokenize": "model.tokenizer(texts) tokenises",
    "evaluate eval Evaluator InformationRetrievalEvaluator EvaluateRetrieval model_card_data": (
        "dpr.evaluate(model, queries, corpus, qrels) computes the metrics of retrieval,"
        " dpr.mean_metrics(dpr.evaluate_questions(run, qrels)) those of rankings; the evaluators of"
        " sentence-transformers take the model"
    ),
    "k_values precision_recall_at_k accuracy_at_k ndcg_at_k mrr_at_k map_at_k": 'metrics=["ndcg@10", "recall@100"]',
    "relevant_docs relevant": "qrels={question id: {passage id, ...}}",
    "MultipleNegativesRankingLoss scale": (
        "the default loss uses in-batch negatives (loss= names others); temperature=0.05 is its scale of 20"
    ),
    "mine_hard_negatives": "dpr.mine_hard_negatives(pairs, model, corpus=passages) mines hard negatives",
    "num_negatives num_hard_negatives": "per_question={}",
    "k": "search(question, k={}) returns as many hits; mine_hard_negatives takes per_question and to_rank",
    "anchor_column_name positive_column_name columns": (
        'open_training_set(dataset, name="train", columns={"question": "query", "positive": "answer"})'
    ),
    "output_format output_scores include_positives as_triplets": (
        "leave it out: rows have question, positive_ctxs, and hard_negative_ctxs with scores, which"
        " BiEncoderTrainer(model, train_sets=rows) takes"
    ),
    "range_min range_max": "from_rank=11, to_rank=50 take ranks 11 to 50",
    "relative_margin absolute_margin margin max_score min_score": (
        "max_relative_score=0.95 of mine_hard_negatives is a relative margin of 0.05"
    ),
    "encode index index_factory nprobe": (
        "dpr embed model=MODEL corpus=corpus.tsv out=FOLDER writes vectors; Retriever.build(model, texts) searches,"
        ' with folder=FOLDER, indexer="hnsw32" approximately'
    ),
    "embeddings vectors": "Retriever.open(model=MODEL, vectors=FOLDER, corpus=FILE) searches vectors of dpr embed; build makes them",
    "devices accelerator gpus local_rank": (
        'encode(texts, devices=["cuda:0", "cuda:1"]) takes several; training runs under torchrun, inside'
        ' dpr.process_group("cuda")'
    ),
    "start_multi_process_pool stop_multi_process_pool encode_multi_process pool chunk_size": (
        'encode(texts, devices=["cuda:0", "cuda:1"]) starts a process for each device; encode(texts) uses all'
        " cores of the machine"
    ),
    "truncate_dim matryoshka_dims truncate_embeddings truncate_sentence_embeddings": (
        "encode(texts, truncate_dim=256) or model.keep_dimensions(256) cuts vectors; dimensions=[256, 64] of the"
        " trainer trains for it"
    ),
    "precision": "sentence_transformers.quantize_embeddings(vectors, 'int8'), or dpr embed out_dtype=int8",
    "default_prompt_name encode_queries encode_corpus": 'encode_questions(texts), encode_passages(texts), or prompt_name="query"',
    "prompts query_prompt passage_prompt corpus_prompt query_prefix passage_prefix query_instruction query_instruction_for_retrieval": (
        'BiEncoder.load(name, prompts={"query": "query: ", "document": "passage: "}), or for a new model'
        ' EncoderSettings(query_prompt="query: ", passage_prompt="passage: ")'
    ),
    "temperature": "options=TowerOptions(temperature=0.05), or of the trainer: temperature=0.05",
    "model_kwargs config_kwargs torch_dtype dtype attn_implementation": (
        'encode(texts, precision="bf16") sets the arithmetic, model.to(torch.bfloat16) the type of weights,'
        " options=TowerOptions(...) how towers run"
    ),
    "tokenizer_kwargs processor_kwargs preprocess get_max_seq_length max_length max_seq_length": (
        "model.max_seq_length = 256 sets the longest text in tokens"
    ),
    "output_value": "encode returns one vector for each text; output_value stays sentence_embedding",
    "aembed_query aembed_documents ainvoke": "await asyncio.to_thread(model.embed_query, text), to_thread(retriever.search, question)",
    "cos_sim pytorch_cos_sim dot_score pairwise_cos_sim pairwise_dot_score SimilarityFunction": (
        "model.similarity(questions, passages) computes the scores; sentence_transformers.util takes these vectors"
    ),
    "quantize_embeddings": "sentence_transformers.quantize_embeddings(vectors, 'int8') takes these vectors",
    "paraphrase_mining community_detection": "sentence_transformers.util has it; it takes the vectors of model.encode(texts)",
    "FlatIndex IndexFlatIP FaissIndex VectorStore InMemoryVectorStore FAISS": (
        'Retriever.build(model, texts) searches, with indexer="hnsw32" approximately; indexes of faiss take these'
        " vectors, and LangChain's stores take the model (embed_query, embed_documents)"
    ),
    "Embeddings HuggingFaceEmbeddings SentenceTransformerEmbeddings": (
        "BiEncoder(folder) has embed_query and embed_documents, which LangChain's stores call"
    ),
    "trust_remote_code": "code in model folders is never run; leave it out",
    "similarity_fn_name metric": "BiEncoder.from_pretrained(name, EncoderSettings(normalize=True)) ranks by cosine",
    "cache_folder cache_dir token use_auth_token local_files_only revision": (
        "HF_HOME sets where models are kept, HF_TOKEN who downloads them; hf download --revision fetches a revision"
    ),
    "pooling": "settings=EncoderSettings(pooling=...)",
    "normalize normalize_embeddings": "encode(texts, normalize_embeddings=True), or for a new model EncoderSettings(normalize=True)",
    "lora lora_r lora_rank lora_alpha lora_config peft_config LoraConfig add_adapter get_peft_model": (
        "encoder.adapter=lora trains adapters; from Python, the model is"
        ' BiEncoder.from_pretrained(name, EncoderSettings(adapter="lora", lora_rank=16))'
    ),
    "load load_local from_pretrained from_texts from_documents from_folder": (
        "Retriever.build(model, passages) makes one, Retriever.open(folder) opens one"
    ),
    "save save_local persist": "Retriever.build(model, passages, folder=FOLDER) keeps it, Retriever.open(FOLDER) opens it again",
    "util semantic_search retrieve invoke query ask get_relevant_documents similarity_search similarity_search_by_vector get_top_docs": (
        "Retriever.build(model, texts).search(question, k=5) searches; sentence_transformers.util takes these vectors"
    ),
    "add_texts add_documents insert write_documents": "add(passages) adds texts, dictionaries with 'text', or Passage",
    "Document": 'give {"text": doc.page_content, **doc.metadata}, or dpr.Passage(text, title)',
    "BM25 BM25Retriever BM25Okapi": 'Retriever.build("bm25", passages) searches by words',
    "upsert": "update(passages) replaces passages by id, add(passages) adds new ones; id in retriever tells which",
    "remove remove_ids delete_documents": "delete(ids) deletes passages",
    "get_by_ids filter_documents": "get(ids) gives passages; search(question, where={...}) filters",
    "count count_documents ntotal": "len(retriever)",
    "set": "corpus: FOLDER/corpus.jsonl, questions: FOLDER/queries.jsonl, qrels: FOLDER/qrels/test.tsv",
    "ids metadata metadatas titles": 'passages=[{"id": "a", "title": "", "text": "...", "year": 2020}, ...]',
    "top_k topk n limit n_results num_results": "k={}",
    "filter filters metadata_filter": 'where={"language": "en", "year": [2020, 2021]}',
    "hybrid alpha search_type": 'mode="hybrid", weight=0.5',
    "threshold score_threshold": "[hit for hit in hits if hit.score > {}]; hits.seems_unanswered tells questions without an answer",
    "batch_size show_progress_bar show_progress progress verbose quiet disable_tqdm": (
        'leave it out: batches are chosen to fit into memory; logging.getLogger("dpr").setLevel("WARNING") hides'
        " progress"
    ),
    "save_model save_state": "trainer.model.save(folder); BiEncoder.load(output_dir) is the best checkpoint of the run",
    "early_stopping_patience patience EarlyStoppingCallback": "callbacks=[dpr.EarlyStopping(patience=3)]",
    "TrainerCallback add_callback remove_callback pop_callback callback": (
        "callbacks=[...] takes objects of a subclass of dpr.Callback: def on_step_end(self, run): run.progress.step"
    ),
    "TripletLoss MultipleNegativesSymmetricRankingLoss CachedMultipleNegativesSymmetricRankingLoss": (
        "hard negatives of the data count in the default loss; symmetric_weight=1 scores both ways"
    ),
    "as_retriever batch similarity_search_with_score similarity_search_with_relevance_scores max_marginal_relevance_search": (
        "retriever.search(question, k=5) returns hits, each with its score; a list of questions gives a list of lists"
    ),
    "MatryoshkaLoss": "dimensions=[384, 128, 64]",
    "GISTEmbedLoss CachedGISTEmbedLoss": "guide=VECTORS (of dpr embed) leaves out likely false negatives",
    "MarginMSELoss DistillKLDivLoss": "teacher_score in the data, with margin_mse_weight=1 or kl_weight=1",
    "TripletEvaluator EmbeddingSimilarityEvaluator NanoBEIREvaluator RerankingEvaluator evaluator compute_metrics predict": (
        "dev_sets=... and validations=[...] measure during training; evaluators of sentence-transformers take the model"
    ),
    "data_collator processing_class tokenizer model_init compute_loss_func preprocess_logits_for_metrics": (
        "leave it out: the model has its tokenizer, loss= takes another loss"
    ),
    "optimizers optimizer_cls_and_kwargs optim optim_args lr_scheduler lr_scheduler_kwargs": (
        "the optimizer is AdamW; learning_rate, lr_schedule, warmup_steps, weight_decay, adam_betas set it"
    ),
    "args": "trainer.settings has the settings",
    "state best_model_checkpoint training_loss": "trainer.progress has the step, the metrics and the best checkpoint",
    "log log_metrics save_metrics log_history history": "output_dir has metrics.jsonl; a dpr.Callback logs more",
    "get_train_dataloader": "trainer.micro_batches() yields the batches",
    "hyperparameter_search": "make a trainer for each value, with an output_dir of its own",
    "adam_beta1": "adam_betas='({}, 0.999)'",
    "adam_beta2": "adam_betas='(0.9, {})'",
    "warmup_ratio warmup_steps": "absent = a tenth of the run's steps, warmup_steps=N = N steps",
    "metric_for_best_model": (
        "leave it out for the loss on dev_sets; best_metric='eval/NAME/ndcg@10' is a metric of a validation"
    ),
    "load_best_model_at_end": "BiEncoder.load(output_dir) is the best checkpoint; leave it out",
    "greater_is_better logging_strategy save_strategy do_train do_eval remove_unused_columns overwrite_output_dir": "leave it out",
    "sampling_strategy use_faiss faiss_batch_size use_multi_process save_best_model dataloader_drop_last": "leave it out",
    "report_to run_name project logging_dir": (
        "callbacks=[WeightsAndBiases()] of dpr.training.callbacks.trackers, or TensorBoard(folder)"
    ),
    "batch_sampler": "leave it out: a passage counts once per global batch",
    "multi_dataset_batch_sampler": "train_sampling_rates=[1.0, 2.0] has a factor for each of train_sets",
    "fsdp fsdp_config deepspeed": "sharding='fsdp2', under torchrun",
    "use_cpu": "model.to('cpu')",
    "mini_batch_size CachedMultipleNegativesRankingLoss": "grad_cache_tokens=16384 keeps the graphs of at most that many tokens",
    "-m multirun": "one command runs one job; loop over the values in the shell (docs/training.md)",
    "resume_from_checkpoint": "train() resumes the run that it finds in output_dir",
}
_HOME = {name: line for names, line in _LINES.items() for name in names.split()}
"""Equivalents in this package of methods, arguments, classes and commands of other libraries, by their names
there."""

_USED_BY_OTHERS = {
    "train.learning_rate": "lr",
    "train.precision=bf16": "bf16",
    "train.precision=fp16": "fp16",
    "train.adam_eps": "adam_epsilon",
    "train.eval_at_start": "eval_on_start",
    "train.deterministic": "full_determinism",
    "train.num_train_epochs": "epochs",
    "train.batch_size": "per_device_train_batch_size train_batch_size",
    "train.dev_batch_size": "per_device_eval_batch_size eval_batch_size",
    "train.eval_per_epoch, train.eval_every_steps": "eval_strategy evaluation_strategy",
    "train.eval_every_steps": "eval_steps evaluation_steps",
    "train.save_every_steps": "save_steps",
    "train.keep_last": "save_total_limit",
    "train.log_batch_step": "logging_steps",
    "train.num_workers": "dataloader_num_workers",
    "train.lr_schedule": "lr_scheduler_type",
    "train.hard_negatives": "train_n_passages train_group_size num_negatives num_hard_negatives",
    "train.grad_cache_tokens": "gc_chunk_size",
    "tracking.tensorboard, tracking.wandb": "report_to",
    "output_dir (the same command resumes the run there)": "resume_from_checkpoint",
    "encoder.pretrained_model_cfg, model_file": "model_name_or_path model_name model",
    "encoder.sequence_length": "max_seq_length max_length p_max_len passage_max_len",
    "encoder.question_length": "q_max_len query_max_len",
    "output_dir, out_file, out": "output output_path",
    "train_datasets": "train_file train_data train_dir",
    "dev_datasets": "dev_file eval_file validation_file",
    "ctx_src, ctx_datasets": "ctx_file",
    "qa_dataset": "qa_file queries",
    "datasets (as datasets.NAME.OPTION)": (
        "question_col answers_col id_col special_token special_query_token query_prefix passage_prefix selector"
    ),
    "ctx_sources (as ctx_sources.NAME.OPTION)": "text_col title_col id_prefix",
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
_NAMES_IN_OTHERS = {name: settings for settings, names in _USED_BY_OTHERS.items() for name in names.split()}
"""Keys of other trainers, and flags of the first version of DPR, by the settings that do the same."""


def refuse(arguments: Mapping[str, Any], where: str, known: Container[str] = ()) -> None:
    """Raises TypeError for all arguments that ``where`` does not have, except those that are None or
    ``known``."""
    by_line: dict[str, list[str]] = {}
    for name, value in arguments.items():
        if value is not None and name not in known:
            by_line.setdefault(hint(name, value), []).append(repr(name))
    if by_line:
        listed = (", ".join(names) + line for line, names in by_line.items())
        raise TypeError(f"{where} has no argument {'; nor '.join(listed)}")


def hint(name: str, value: Any = None) -> str:
    """Returns ``: `` and the line to write in place of a name of another library, with its ``value``; empty
    for other names."""
    return f": {_HOME[name].replace('{}', _shown(value))}" if name in _HOME else ""


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, str | int | float) else "..."


def name_here_of(key: str, known: Collection[str]) -> str:
    """Returns, as a text, the settings of this job that do the same as ``key`` of another program; empty if
    there are none."""
    named = _NAMES_IN_OTHERS.get(key, _NAMES_IN_OTHERS.get(key.rpartition(".")[2], "")).split(", ")
    return ", ".join(name for name in named if name and name.partition(" ")[0].partition("=")[0] in known)


def written_here(name: str, value: Any, known: Collection[str]) -> str:
    """Returns the arguments to write from Python for one of another program, such as ``batch_size=8``; empty
    if there are none. ``known`` are the names of settings."""
    if name == "warmup_steps" and 0 < value < 1:  # a share of the steps in newer versions of transformers
        return ""
    value = getattr(value, "value", value)
    here = name if f"train.{name}" in known or name in known else name_here_of(name, known)
    here = here.replace("train.", "")
    setting, _, fixed = here.partition("=")
    if not here or "(" in fixed:
        return here
    if "," in here:
        return here.replace(", ", " or ")
    if fixed:
        return f"{setting}={fixed!r}" if value else ""
    return f"{setting}={_shown(value)}"


def translated(args: Any, known: Collection[str]) -> str:
    """Returns the arguments to write for the ``TrainingArguments`` of transformers: for fields that differ
    from their defaults, and those that have other defaults here."""
    plain = type(args)(output_dir=args.output_dir)
    plain.learning_rate = plain.per_device_train_batch_size = None
    changed = {item.name: getattr(args, item.name) for item in fields(args)}
    changed = {name: value for name, value in changed.items() if value != getattr(plain, name)}
    lines = {name: written_here(name, value, known) for name, value in changed.items()}
    written = [f"output_dir={args.output_dir!r}", *filter(None, lines.values())]
    others = [
        f"{name}{hint(name, changed[name]) or ' has no equivalent'}"
        for name, line in lines.items()
        if not line and changed[name] not in (None, False)
    ]
    return "; ".join([f"settings are given by name: {', '.join(dict.fromkeys(written))}", *others])


def missing(holder: Any, name: str) -> Any:
    """Raises AttributeError, with the line to write, for a missing attribute. Serves objects and classes as
    ``__getattr__``."""
    kind = holder if isinstance(holder, type) else type(holder)
    raise AttributeError(f"{kind.__name__} has no attribute {name!r}{hint(name)}")


class Hinting(ABCMeta):
    """Metaclass of classes whose missing attributes are answered by ``missing``."""

    if not TYPE_CHECKING:  # type checkers would take any name for one that is there
        __getattr__ = missing
