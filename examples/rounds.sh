#!/usr/bin/env bash
# Trains in rounds, like the later models of DPR: a model on negatives from BM25, negatives that this model wrongly ranks high, and a new
# model on both.
#
#   TRAIN=train.jsonl DEV=dev.jsonl CORPUS=corpus.tsv OUT=runs/rounds bash examples/rounds.sh train=biencoder_nq train.num_train_epochs=40
#
# Arguments of the script are settings of each training. Rerun the same line after a kill: finished commands do nothing, and the interrupted
# one resumes. If settings or data have changed, the command that uses them refuses; set a new OUT.
set -euo pipefail

: "${TRAIN:?is the file of training data}"
: "${DEV:?is the file of dev data}"
: "${CORPUS:?is the file of passages to mine from}"
OUT=${OUT:-runs/rounds}
ROUNDS=${ROUNDS:-2}   # number of trainings
MINE=${MINE:-}        # settings of dpr mine: MINE="per_question=4 to_rank=50"
DEVICE=${DEVICE:-}    # setting of every command that runs a model: DEVICE="device=cpu"
LAUNCH=${LAUNCH:-dpr} # launcher of training and embedding: LAUNCH="torchrun --nproc-per-node=8 -m dpr"

mkdir -p "$OUT"
dpr mine "$TRAIN" corpus="$CORPUS" out="$OUT/bm25.jsonl" $MINE
files="$OUT/bm25.jsonl"

for round in $(seq "$ROUNDS"); do
    $LAUNCH train "train_datasets=[$files]" "dev_datasets=[$DEV]" output_dir="$OUT/model-$round" $DEVICE "$@"
    if [ "$round" = "$ROUNDS" ]; then
        break
    fi
    $LAUNCH embed model_file="$OUT/model-$round" ctx_src="$CORPUS" out_file="$OUT/vectors-$round" $DEVICE
    dpr mine "$TRAIN" corpus="$CORPUS" model_file="$OUT/model-$round" vectors="$OUT/vectors-${round}_0" \
        out="$OUT/mined-$round.jsonl" $MINE $DEVICE
    files="$files,$OUT/mined-$round.jsonl"
done

echo "the last model: $OUT/model-$ROUNDS"
