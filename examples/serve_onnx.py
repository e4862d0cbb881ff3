"""Searches with a folder that `dpr export to=onnx` wrote, without torch: pip install onnxruntime tokenizers.

python serve_onnx.py FOLDER "a question" passages.tsv   prints the five best of the passages (id, text,
title).
"""

import csv
import json
import os
import sys
from pathlib import Path

# read when onnxruntime is imported, which otherwise reports to Microsoft
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import numpy as np
import onnxruntime
from tokenizers import Tokenizer


class Side:
    def __init__(self, folder: Path, side: str) -> None:
        self.folder = json.loads((folder / "serving.json").read_text())
        self.own = self.folder[side]
        self.tokenizer = Tokenizer.from_file(str(folder / self.own["tokenizer"]))
        self.session = onnxruntime.InferenceSession(str(folder / self.own["graph"]))

    def vectors(self, texts: list) -> np.ndarray:
        tokens = [encoding.ids or self.folder["empty"] for encoding in self.tokenizer.encode_batch(texts)]
        mask = np.arange(max(map(len, tokens))) < np.array([[len(row)] for row in tokens])
        ids = np.full(mask.shape, self.folder["pad_id"], dtype=np.int64)
        ids[mask] = np.concatenate(tokens)
        return self.session.run(None, {"input_ids": ids, "attention_mask": mask.astype(np.int64)})[0]

    def question(self, text: str) -> np.ndarray:
        for old, new in self.own["replace"].items():
            text = text.replace(old, new)
        return self.vectors([self.own["prompt"] + text])[0]

    def passages(self, pairs: list[tuple[str, str]]) -> np.ndarray:
        def shown(title: str, text: str) -> str | tuple[str, str]:
            prompt, template = self.own["prompt"], self.own["title_template"].removesuffix("{text}")
            if title and not template:
                return prompt + title, text.strip()
            return prompt + (template.replace("{title}", title) if title else "") + text.strip()

        return np.concatenate(
            [self.vectors([shown(*pair) for pair in pairs[at : at + 32]]) for at in range(0, len(pairs), 32)]
        )


if __name__ == "__main__":
    folder, question, corpus = sys.argv[1:]
    with open(corpus, encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines, delimiter="\t"))
    passages = Side(Path(folder), "ctx").passages([(row["title"] or "", row["text"]) for row in rows])
    scores = passages @ Side(Path(folder), "question").question(question)
    for row in np.argsort(-scores)[:5]:
        print(f"{scores[row]:9.4f}  {rows[row]['id']}  {rows[row]['title']}: {rows[row]['text'][:80]}")
