"""Folders of published embedding models, file by file as their publishers laid them out, but tiny and with random
weights."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import ascii_letters, digits
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from tests.helpers.decoders import ALPHABET, byte_tokenizer
from tests.helpers.tiny import VOCABULARY, WORDS

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
LETTERS = ascii_letters + digits + ".,:;|?!-'\u2019\u00e9\u00fc"
POOLINGS = (
    "cls_token",
    "mean_tokens",
    "max_tokens",
    "mean_sqrt_len_tokens",
    "weightedmean_tokens",
    "lasttoken",
)


def word_pieces(length: int) -> Any:
    """BERT's: lower-cased, between [CLS] and [SEP]."""
    pieces = [*VOCABULARY, *LETTERS.lower(), *(f"##{letter}" for letter in LETTERS.lower())]
    numbers = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    return transformers.BertTokenizer(vocab=numbers, do_lower_case=True, model_max_length=length)


def sentence_pieces(length: int) -> Any:
    """XLM-R's: a unigram model whose first pieces are the special tokens."""
    pieces = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    pieces += [(letter, -6.0) for letter in "\u2581" + LETTERS]
    pieces += [("\u2581" + word, -4.0) for word in WORDS]
    pieces.append(("<mask>", 0.0))
    return transformers.XLMRobertaTokenizer(vocab=pieces, model_max_length=length)


def bytes_in_brackets(length: int) -> Any:
    """ModernBERT's: bytes between [CLS] and [SEP]; no token types."""
    special = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
    numbers = ALPHABET | {token: len(ALPHABET) + number for number, token in enumerate(special)}
    tokenizer = Tokenizer(models.BPE(numbers, []))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(special)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(token, numbers[token]) for token in ("[CLS]", "[SEP]")],
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        pad_token="[PAD]",
        mask_token="[MASK]",
        model_input_names=["input_ids", "attention_mask"],
        model_max_length=length,
    )


def bytes_padded_left(length: int) -> Any:
    """Qwen3-Embedding's: bytes, and behind every text the token that also fills batches up, from the left."""
    return byte_tokenizer("qwen3 embedding", padding_side="left", model_max_length=length)


def gemma_pieces(length: int) -> Any:
    """Gemma's: characters between <bos> and <eos>, and a token of images that a model of texts has no row for."""
    pieces = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "\u2581", *LETTERS]
    numbers = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = transformers.GemmaTokenizer(
        vocab=numbers, merges=[], model_max_length=length, image_token="<image_soft_token>"
    )
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>",
        pair="<bos> $A <eos> <bos> $B <eos>",
        special_tokens=[(token, numbers[token]) for token in ("<bos>", "<eos>")],
    )
    return tokenizer


@dataclass(frozen=True)
class Published:
    """What a folder states, except for its sizes."""

    family: str
    tokenizer: Callable[[int], Any]
    pooling: str
    length: int
    config: Mapping[str, Any]
    normalize: bool = True
    dense: Sequence[int] = ()
    earlier: Mapping[str, Any] = field(default_factory=dict)
    """Keys of config.json that an earlier transformers wrote, in place of ``rope_parameters``."""
    body: Mapping[str, Any] | None = None
    """sentence_bert_config.json without the length; None for no such file."""
    library: Mapping[str, Any] | None = None
    """config_sentence_transformers.json; None for no such file."""
    given: Mapping[str, str] = field(default_factory=dict)
    """Prompts of its model card that the folder does not state."""


COSINE = {"similarity_fn_name": "cosine", "default_prompt_name": None}
CASED = {"do_lower_case": False}
BERT = {"max_position_embeddings": 512}
ROBERTA = {"max_position_embeddings": 514, "type_vocab_size": 1, "pad_token_id": 1}
MODERN = {
    "max_position_embeddings": 64,
    "local_attention": 8,
    "global_attn_every_n_layers": 2,
    "bos_token_id": 257,
    "cls_token_id": 257,
    "eos_token_id": 258,
    "sep_token_id": 258,
    "pad_token_id": 259,
}
QWEN = {
    "max_position_embeddings": 256,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "pad_token_id": 257,
    "eos_token_id": 257,
    "bos_token_id": None,
}
GEMMA = {
    "max_position_embeddings": 256,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "query_pre_attn_scalar": 8,
    "use_bidirectional_attention": True,
    "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention"],
}
NOMIC = {"max_position_embeddings": 64}  # rotary: longer texts are read whole
MODERN_EARLIER = {
    "global_rope_theta": 160000.0,
    "local_rope_theta": 10000.0,
    "position_embedding_type": "absolute",
    "reference_compile": False,
}
QWEN_EARLIER = {"rope_theta": 1000000, "rope_scaling": None, "use_sliding_window": False}
GEMMA_EARLIER = {"rope_theta": 1000000.0, "rope_local_base_freq": 10000.0, "rope_scaling": None}
E5_PROMPTS = {"query_prompt": "query: ", "passage_prompt": "passage: "}
NOMIC_PROMPTS = {"query_prompt": "search_query: ", "passage_prompt": "search_document: "}
BGE_PROMPT = "Represent this sentence for searching relevant passages: "
QWEN_PROMPTS = {
    "query": "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:",
    "document": "",
}
GEMMA_PROMPTS = {
    "query": "task: search result | query: ",
    "document": "title: none | text: ",
    "Clustering": "task: clustering | query: ",
    "Retrieval-query": "task: search result | query: ",
}
FOLDERS = {
    "intfloat/e5-base-v2": Published(
        "Bert", word_pieces, "mean_tokens", 48, BERT, body=CASED, given=E5_PROMPTS
    ),
    "intfloat/multilingual-e5-base": Published(
        "XLMRoberta", sentence_pieces, "mean_tokens", 48, ROBERTA, body=CASED, given=E5_PROMPTS
    ),
    "BAAI/bge-base-en-v1.5": Published(
        "Bert",
        word_pieces,
        "cls_token",
        48,
        BERT,
        body={"do_lower_case": True},
        given={"query_prompt": BGE_PROMPT},
    ),
    "BAAI/bge-m3": Published("XLMRoberta", sentence_pieces, "cls_token", 64, ROBERTA, body=CASED),
    "thenlper/gte-base": Published("Bert", word_pieces, "mean_tokens", 48, BERT, body=CASED),
    "Alibaba-NLP/gte-modernbert-base": Published(
        "ModernBert",
        bytes_in_brackets,
        "cls_token",
        64,
        MODERN,
        normalize=False,
        earlier=MODERN_EARLIER,
        library=COSINE,
    ),
    "nomic-ai/nomic-embed-text-v1.5": Published(
        "NomicBert", word_pieces, "mean_tokens", 96, NOMIC, normalize=False, body=CASED, given=NOMIC_PROMPTS
    ),
    "Snowflake/snowflake-arctic-embed-m-v1.5": Published(
        "Bert",
        word_pieces,
        "cls_token",
        48,
        BERT,
        body=CASED | {"model_args": {"add_pooling_layer": False}},
        library={"prompts": {"query": BGE_PROMPT}, "similarity_fn_name": None},
    ),
    "Qwen/Qwen3-Embedding-0.6B": Published(
        "Qwen3",
        bytes_padded_left,
        "lasttoken",
        256,
        QWEN,
        earlier=QWEN_EARLIER,
        library=COSINE | {"prompts": QWEN_PROMPTS},
    ),
    "google/embeddinggemma-300m": Published(
        "Gemma3Text",
        gemma_pieces,
        "mean_tokens",
        128,
        GEMMA,
        dense=(64, 32),
        earlier=GEMMA_EARLIER,
        body=CASED,
        library=COSINE | {"prompts": GEMMA_PROMPTS},
    ),
}


def write_json(path: Path, values: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values, indent=2))


def write_backbone(folder: Path, family: str, tokenizer: Any, config: Mapping[str, Any]) -> None:
    """Writes config, weights and tokenizer; weights are so large that every token counts."""
    torch.manual_seed(0)
    config_class = getattr(transformers, f"{family}Config")
    rows = tokenizer.backend_tokenizer.get_vocab_size(with_added_tokens=False)
    sized = config_class(vocab_size=rows, initializer_range=0.2, **SIZES, **config)
    transformers.AutoModel.from_config(sized).save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))


def publish(folder: Path, name: str) -> Published:
    """Writes a tiny model of that name; returns what the folder states."""
    from safetensors.torch import save_file

    spec = FOLDERS[name]
    write_backbone(folder, spec.family, spec.tokenizer(spec.length), spec.config)
    if spec.earlier:
        config = json.loads((folder / "config.json").read_text())
        for name in {"rope_parameters", "layer_types"} - spec.config.keys():
            config.pop(name, None)
        write_json(folder / "config.json", config | spec.earlier)
    kinds = ["Transformer", "Pooling", *["Dense"] * len(spec.dense), *["Normalize"] * spec.normalize]
    modules = []
    for number, kind in enumerate(kinds):
        path = f"{number}_{kind}" if number else ""
        kind = f"sentence_transformers.models.{kind}"
        modules.append({"idx": number, "name": str(number), "path": path, "type": kind})
    write_json(folder / "modules.json", modules)
    width = SIZES["hidden_size"]
    pooling = {f"pooling_mode_{key}": key == spec.pooling for key in POOLINGS}
    write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": width, **pooling})
    for number, rows in enumerate(spec.dense, 2):
        stated: dict[str, Any] = {"in_features": width, "out_features": rows, "bias": False}
        stated["activation_function"] = "torch.nn.modules.linear.Identity"
        write_json(folder / f"{number}_Dense" / "config.json", stated)
        weights = {"linear.weight": torch.randn(rows, width) / 4}
        save_file(weights, str(folder / f"{number}_Dense" / "model.safetensors"))
        width = rows
    if spec.body is not None:
        write_json(folder / "sentence_bert_config.json", {"max_seq_length": spec.length, **spec.body})
    if spec.library is not None:
        write_json(folder / "config_sentence_transformers.json", spec.library)
    return spec
