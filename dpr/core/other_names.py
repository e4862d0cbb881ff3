"""What people who know sentence-transformers look for under its name, with the line to write here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_ARGUMENTS = "model.to(torch.bfloat16) sets the type of weights, options=TowerOptions(...) how towers run"
_CACHE = "HF_HOME and HF_TOKEN in the environment say where models are kept and who fetches them"
_EVALUATORS = (
    "dpr retrieve and dpr evaluate compute the metrics of retrieval, dpr.evaluate_questions those of rankings;"
    " the evaluators of sentence-transformers take dpr.to_sentence_transformer(model)"
)
_TRAINER = "BiEncoderTrainer(model, train_sets=..., output_dir=..., batch_size=32).train() trains"
_LORA = 'BiEncoder.from_pretrained(name, EncoderSettings(adapter="lora", lora_rank=16)) has adapters'
LINES = {
    "save_pretrained": (
        "model.save(folder) writes a folder for BiEncoder.load and every command,"
        " dpr.to_sentence_transformer(model).save_pretrained(folder) one for sentence-transformers"
    ),
    "push_to_hub": "model.save(folder), then hf upload USER/NAME FOLDER",
    "export": "model.save(folder), then dpr export model_file=FOLDER to=onnx out=OTHER",
    "fit": _TRAINER,
    "SentenceTransformerTrainer": _TRAINER,
    "SentenceTransformer": "dpr.BiEncoder(name_or_folder) opens its models",
    "InputExample": "a training set may be a list of (question, passage), with negatives behind them",
    "tokenize": "model.tokenizer(texts) tokenises",
    "model_card_data": _EVALUATORS,
    "InformationRetrievalEvaluator": _EVALUATORS,
    "MultipleNegativesRankingLoss": (
        "the loss is that of in-batch negatives unless loss= says otherwise; temperature=0.05 is its scale of 20"
    ),
    "mine_hard_negatives": "dpr mine train.jsonl corpus=corpus.tsv out=mined.jsonl model_file=FOLDER mines hard negatives",
    "semantic_search": "Retriever.build(model, texts).search(question, k=5) searches",
    "util": "sentence_transformers.util works with these vectors; Retriever.build(model, texts) searches",
    "pool": "dpr embed under torchrun embeds on several GPUs",
    "truncate_dim": "model.keep_dimensions(256) cuts vectors from then on",
    "precision": "sentence_transformers.quantize_embeddings(vectors, 'int8'), or dpr embed out_dtype=int8",
    "prompt": "put it before the texts; prompt_name=NAME takes one of the model's prompts",
    "temperature": "options=TowerOptions(temperature=0.05), or of the trainer: temperature=0.05",
    "model_kwargs": _ARGUMENTS,
    "tokenizer_kwargs": _ARGUMENTS,
    "trust_remote_code": "code in model folders is never run; leave it out",
    "torch_dtype": _ARGUMENTS,
    "backend": "dpr export to=onnx writes a graph for other programs",
    "similarity_fn_name": "BiEncoder.from_pretrained(name, EncoderSettings(normalize=True)) has cosine",
    "cache_folder": _CACHE,
    "revision": "hf download USER/NAME --revision REVISION fetches it; give the folder that it prints",
    "pooling": "settings=EncoderSettings(pooling=...)",
    "normalize": "settings=EncoderSettings(normalize=True)",
    "top_k": "k=5",
    "remove": (
        "search(question, ids=[...]) searches the passages that stay; Retriever.build makes it anew without the others"
    ),
    "save": "Retriever.build(model, passages, folder=FOLDER) keeps it, Retriever.open(FOLDER) opens it again",
    "load": "Retriever.build(model, passages) makes one, Retriever.open(folder) opens one",
    "save_model": "trainer.model.save(folder); BiEncoder.load(output_dir) is the best checkpoint of the run",
    "early_stopping_patience": "callbacks=[dpr.EarlyStopping(patience=3)]",
    "mini_batch_size": "grad_cache_tokens=16384 holds the graphs of so many tokens at most",
    "matryoshka_dims": "dimensions=[256, 64]",
    "lora_rank": _LORA,
    "peft_config": _LORA,
    "resume_from_checkpoint": "train() goes on with the run that it finds in output_dir",
}
"""Names of methods, arguments and classes there, each with what does it here."""


def refuse(arguments: Mapping[str, Any], where: str) -> None:
    """Raises TypeError for arguments that ``where`` does not have, but those that are None."""
    for name, value in arguments.items():
        if value is not None:
            raise TypeError(f"{where} has no argument {name!r}{hint(name)}")


def hint(name: str) -> str:
    """``: `` and the line to write in place of a name of sentence-transformers; empty for others."""
    return f": {LINES[name]}" if name in LINES else ""
