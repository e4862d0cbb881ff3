#!/usr/bin/env bash
# Trains in rounds, as DPR's better models were made: negatives that BM25 finds, a model, negatives that this model ranks high although they
# are wrong, and a new model on both.
#
#   TRAIN=train.jsonl DEV=dev.jsonl CORPUS=corpus.tsv OUT=runs/rounds bash examples/rounds.sh train=biencoder_nq train.num_train_epochs=40
#
# What follows the script's name are settings of each training. Rerun the same line after a kill: a command that is done does nothing, one
# that was interrupted goes on. Other settings or data are refused by the command that they belong to; a new OUT starts anew.
set -euo pipefail

: "${TRAIN:?is the file of training data}"
: "${DEV:?is the file of dev data}"
: "${CORPUS:?is the file of passages to mine from}"
OUT=${OUT:-runs/rounds}
ROUNDS=${ROUNDS:-2}   # trainings
MINE=${MINE:-}        # settings of dpr mine: MINE="per_question=4 to_rank=50"
DEVICE=${DEVICE:-}    # of every command that runs a model: DEVICE="device=cpu"
LAUNCH=${LAUNCH:-dpr} # of training and embedding: LAUNCH="torchrun --nproc-per-node=8 -m dpr"

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
