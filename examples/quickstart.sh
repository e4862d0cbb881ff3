#!/usr/bin/env bash
# From the text on this machine to an evaluated retriever, with the public commands alone. No network, some minutes on two CPU cores.
# Everything goes to runs/quickstart, which is removed first. The same environment gives the same numbers.
set -euo pipefail
cd "$(dirname "$0")/.."

Q=runs/quickstart
export HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 TOKENIZERS_PARALLELISM=false

BOLD='' PLAIN=''
if [ -t 1 ]; then BOLD=$'\033[1m' PLAIN=$'\033[0m'; fi
say() { printf '\n%s# %s%s\n' "$BOLD" "$*" "$PLAIN"; }

run() { # shows a command as one would type it, then runs it
    printf '$'
    for word in "$@"; do
        if [[ $word =~ ^[[:alnum:]_./=:,@%+-]+$ ]]; then printf ' %s' "$word"; else printf ' "%s"' "$word"; fi
    done
    printf '\n'
    "$@"
}

say "Start from scratch"
run rm -rf $Q

say "1. Data: docstrings of the packages installed here. The first sentence is the question, the rest the passage that answers it."
run python -m examples.docstring_corpus --out $Q/data --hard-negatives 0

say "2. A new encoder: a vocabulary learned from these texts, each token with a random vector. It has no layers."
run dpr new-encoder --corpus $Q/data/corpus.tsv --questions $Q/data/train.json --out $Q/encoder --vocab-size 8000 --layers 0 --hidden 1024

say "3. Train it, on the questions and on pairs cut from the passages. A text's vector is the weighted mean of its tokens' vectors; words of
#    the title, the name, count three times."
STATIC=(encoder=static encoder.pretrained_model_cfg=$Q/encoder encoder.pooling=idf_sqrt
    "encoder.title_template='{title} {title} {title} {text}'" loss.temperature=0.03 train.hard_negatives=0
    train.eval_per_epoch=0)
run dpr train "${STATIC[@]}" "train_datasets=[$Q/data/train.json,{file: $Q/data/corpus.tsv, pairs: mixed}]" train.batch_size=2048 \
    train.learning_rate=0.005 train.num_train_epochs=5 train.log_batch_step=10 output_dir=$Q/model

say "   For comparison, the random vectors it started from: one step with learning rate 0."
run dpr train "${STATIC[@]}" train_datasets=$Q/data/train.json train.learning_rate=0 train.max_steps=1 train.warmup_steps=0 output_dir=$Q/untrained

say "4. Embed the corpus with both."
run dpr embed model_file=$Q/model ctx_src=$Q/data/corpus.tsv out_file=$Q/vectors
run dpr embed model_file=$Q/untrained ctx_src=$Q/data/corpus.tsv out_file=$Q/untrained/vectors

say "5. Retrieve. The test questions are about modules of which training has seen passages, but no question."
TEST="qa_dataset=$Q/data/test_questions.jsonl qrels=$Q/data/test_qrels.tsv ctx_datasets=$Q/data/corpus.tsv"
DEV="qa_dataset=$Q/data/dev_questions.jsonl qrels=$Q/data/dev_qrels.tsv ctx_datasets=$Q/data/corpus.tsv"
DENSE="model_file=$Q/model encoded_ctx_files=$Q/vectors_0"
HYBRID="$DENSE hybrid=linear bm25_index_path=$Q/bm25_index"
run dpr retrieve $TEST indexer=bm25 bm25_index_path=$Q/bm25_index metrics_file=$Q/metrics/bm25.json
run dpr retrieve $TEST model_file=$Q/untrained encoded_ctx_files=$Q/untrained/vectors_0 metrics_file=$Q/metrics/untrained.json
run dpr retrieve $TEST $DENSE metrics_file=$Q/metrics/trained.json

say "   Both together: the share of the dense side is chosen on the dev questions, then used for the test questions."
run dpr retrieve $DEV $HYBRID tune_hybrid_weight=true metrics_file=$Q/metrics/dev.json search_folder=$Q
WEIGHT=$(python -c "import json; print(json.load(open('$Q/metrics/dev.json'))['hybrid_weight'])")
run dpr retrieve $TEST $HYBRID hybrid_weight="$WEIGHT" metrics_file=$Q/metrics/hybrid.json

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

top-k: share of questions with their passage among the first k. The encoder has seen nothing but these texts, and no question about the
modules that the test questions are about. BM25 looks for equal words, the encoder has learned which words go together; the hybrid has
both. It took $((SECONDS / 60)) min $((SECONDS % 60)) s.

Look at it:       $Q/report.html in a browser: curves and tables
Search by hand:   $DPR search $Q "read a csv file"
                  $DPR search $Q --mode dense "read a csv file"      (or bm25, or hybrid)
Your own folder:  $DPR quickstart path/to/folder
Your own pairs:   the files in $Q/data show the formats; docs/file_formats.md describes them.
END
