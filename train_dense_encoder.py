#!/usr/bin/env python3
"""Trains a bi-encoder (``dpr train`` is the same command).

    python train_dense_encoder.py train_datasets=train.json dev_datasets=dev.json output_dir=runs/first
    python train_dense_encoder.py train=biencoder_nq train_datasets=[nq_train] dev_datasets=[nq_dev] output_dir=runs/nq
    torchrun --nproc-per-node=8 train_dense_encoder.py train=biencoder_nq train_datasets=[nq_train,nq_train_hn1] output_dir=runs/nq8
    python train_dense_encoder.py model_file=runs/first dev_datasets=dev.json               # evaluation only

``--help`` lists every setting with its meaning. Rerun the same command to resume the run in ``output_dir``.
"""

from dpr.cli.main import run

if __name__ == "__main__":
    run("train")
