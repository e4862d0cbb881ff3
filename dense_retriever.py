#!/usr/bin/env python3
"""Searches for a set of questions and evaluates the results (``dpr retrieve`` is the same command).

    python dense_retriever.py model_file=runs/first qa_dataset=questions.csv ctx_datatsets=[corpus.tsv] \
        encoded_ctx_files=[runs/first/vectors_*] out_file=runs/first/results.json
    python dense_retriever.py model_file=runs/first qa_dataset=queries.jsonl qrels=qrels/test.tsv \
        encoded_ctx_files=[runs/first/vectors_*] indexer=hnsw index_path=runs/first/hnsw \
        trec_run_file=runs/first/test.run
    python dense_retriever.py indexer=bm25 qa_dataset=queries.jsonl qrels=qrels/test.tsv \
        ctx_datatsets=[corpus.jsonl]

``--help`` lists every setting.
"""

from dpr.cli.main import run

if __name__ == "__main__":
    run("retrieve")
