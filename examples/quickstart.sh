#!/usr/bin/env bash
# From the text on this machine to an evaluated retriever, with the public commands alone. No network, some minutes on two CPU cores.
# Everything goes to runs/quickstart, which is removed first. The same environment gives the same numbers.
set -euo pipefail
cd "$(dirname "$0")/.."

Q=runs/quickstart
export HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 TOKENIZERS_PARALLELISM=false

say() { printf '\n\033[1m# %s\033[0m\n' "$*"; }

run() { # shows a command as one would type it, then runs it
    printf '$ %s' "$1"
    printf ' %s' "${@:2}"
    printf '\n'
    "$@"
}

say "Start from scratch"
run rm -rf $Q

say "1. Data: docstrings of the packages installed here. The first sentence is the question, the rest the passage that answers it."
run python -m examples.docstring_corpus --out $Q/data

say "2. A new encoder: a vocabulary learned from these texts, one transformer layer, no weights yet."
run dpr new-encoder --corpus $Q/data/corpus.tsv --questions $Q/data/train.json --out $Q/encoder \
    --vocab-size 8000 --layers 1 --hidden 256

say "3. Train it. The settings are in conf/encoder/quickstart.yaml and conf/train/quickstart.yaml."
run python train_dense_encoder.py encoder=quickstart train=quickstart loss.temperature=0.07 \
    train_datasets=$Q/data/train.json dev_datasets=$Q/data/dev.json output_dir=$Q/model

say "   For comparison, the random weights it started from: one step with learning rate 0."
run python train_dense_encoder.py encoder=quickstart train=quickstart loss.temperature=0.07 \
    train_datasets=$Q/data/train.json output_dir=$Q/untrained train.max_steps=1 train.learning_rate=0 train.warmup_steps=0

say "4. Embed the corpus with both."
run python generate_embeddings.py model_file=$Q/model ctx_src=$Q/data/corpus.tsv out_file=$Q/vectors
run python generate_embeddings.py model_file=$Q/untrained ctx_src=$Q/data/corpus.tsv out_file=$Q/untrained/vectors

say "5. Retrieve. The test questions are about modules that training has not seen."
TEST="qa_dataset=$Q/data/test_questions.jsonl qrels=$Q/data/test_qrels.tsv ctx_datasets=$Q/data/corpus.tsv"
DEV="qa_dataset=$Q/data/dev_questions.jsonl qrels=$Q/data/dev_qrels.tsv ctx_datasets=$Q/data/corpus.tsv"
DENSE="model_file=$Q/model encoded_ctx_files=$Q/vectors_0"
HYBRID="$DENSE hybrid=linear hybrid_depth=1000 bm25_index_path=$Q/bm25_index"
run python dense_retriever.py $TEST indexer=bm25 bm25_index_path=$Q/bm25_index metrics_file=$Q/metrics/bm25.json
run python dense_retriever.py $TEST model_file=$Q/untrained encoded_ctx_files=$Q/untrained/vectors_0 metrics_file=$Q/metrics/untrained.json
run python dense_retriever.py $TEST $DENSE metrics_file=$Q/metrics/trained.json

say "   Both together: the share of the dense side is chosen on the dev questions, then used for the test questions."
run python dense_retriever.py $DEV $HYBRID tune_hybrid_weight=true metrics_file=$Q/metrics/dev.json search_folder=$Q
WEIGHT=$(python -c "import json; print(json.load(open('$Q/metrics/dev.json'))['hybrid_weight'])")
run python dense_retriever.py $TEST $HYBRID hybrid_weight="$WEIGHT" metrics_file=$Q/metrics/hybrid.json

say "6. The result"
run dpr compare BM25=$Q/metrics/bm25.json untrained=$Q/metrics/untrained.json trained=$Q/metrics/trained.json \
    hybrid=$Q/metrics/hybrid.json --out $Q/metrics.json
run dpr report $Q BM25=$Q/metrics/bm25.json untrained=$Q/metrics/untrained.json trained=$Q/metrics/trained.json \
    hybrid=$Q/metrics/hybrid.json
DPR=dpr
if [[ -z ${VIRTUAL_ENV:-} && $(command -v dpr) == "$PWD"/* ]]; then
    DPR=$(realpath --relative-to=. "$(command -v dpr)") # make's own environment, which the caller's shell does not know
fi
cat <<END

top-k: share of questions with their passage among the first k. The dense encoder has seen nothing but these texts, and on its own it stays
behind BM25, because question and passage share words here; together they are better than either. It took $((SECONDS / 60)) min $((SECONDS % 60)) s.

Look at it:       $Q/report.html in a browser: curves, ranks and example questions
Search by hand:   $DPR search $Q "read a csv file"
                  $DPR search $Q --mode dense "read a csv file"      (or bm25, or hybrid)
Your own text:    the files in $Q/data show the formats; docs/file_formats.md describes them.
END
