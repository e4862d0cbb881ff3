"""Modules of sentence-transformers: the mean of a text's token vectors, in which n repeats of a token count
sqrt(n) times.

``dpr export`` copies this file into folders of models with ``encoder.pooling=idf_sqrt``; nothing here imports
it.
"""

from __future__ import annotations

from typing import Any

import torch
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer


class RootStaticEmbedding(StaticEmbedding):
    """Texts are cut as ``tokenizer.json`` says, and get its special tokens, which ``StaticEmbedding`` leaves
    out."""

    def preprocess(
        self, inputs: list[Any], prompt: str | None = None, **kwargs: Any
    ) -> dict[str, torch.Tensor]:
        if prompt:
            inputs = self._prepend_prompt(inputs, prompt)
        texts = [encoding.ids for encoding in self.tokenizer.encode_batch(inputs)]
        lengths = torch.tensor([0, *map(len, texts)])
        return {
            "input_ids": torch.tensor([token for text in texts for token in text]).long(),
            "offsets": lengths.cumsum(0)[:-1],
        }

    def forward(self, features: dict[str, torch.Tensor], **kwargs: Any) -> dict[str, torch.Tensor]:
        tokens = features["input_ids"]
        offsets = features["offsets"]
        lengths = offsets.diff(append=offsets.new_tensor([len(tokens)]))
        text = torch.repeat_interleave(lengths)  # to which each token belongs
        _, same, counts = torch.unique(
            text * self.num_embeddings + tokens, return_inverse=True, return_counts=True
        )
        table = self.embedding.weight
        weights = counts[same].to(table.dtype).rsqrt() / lengths[text].to(table.dtype)
        features["sentence_embedding"] = torch.nn.functional.embedding_bag(
            tokens, table, offsets, mode="sum", per_sample_weights=weights
        )
        return features

    @classmethod
    def load(cls, model_name_or_path: str, **kwargs: Any) -> RootStaticEmbedding:
        names = ("subfolder", "token", "cache_folder", "revision", "local_files_only")
        where = {name: kwargs[name] for name in names if name in kwargs}
        tokenizer = Tokenizer.from_file(
            cls.load_file_path(model_name_or_path, filename="tokenizer.json", **where)
        )
        weights = cls.load_torch_weights(model_name_or_path=model_name_or_path, **where)
        return cls(tokenizer, embedding_weights=weights["embedding.weight"])
