#!/usr/bin/env python3
"""Encodes a corpus into vectors (``dpr embed`` is the same command).

    python generate_embeddings.py model_file=runs/first ctx_src=corpus.tsv out_file=runs/first/vectors
    python generate_embeddings.py model_file=runs/nq ctx_src=dpr_wiki out_file=vectors/wiki shard_id=0 num_shards=50
    torchrun --nproc-per-node=8 generate_embeddings.py model_file=runs/nq ctx_src=dpr_wiki out_file=vectors/wiki precision=bf16

Writes the folder ``<out_file>_<shard_id>``. ``--help`` lists every setting. Rerun the same command to resume an interrupted run.
"""

from dpr.cli.main import run

if __name__ == "__main__":
    run("embed")
