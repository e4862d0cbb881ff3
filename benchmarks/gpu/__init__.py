"""What one GPU (an H100 or H200) does: ``python -m benchmarks.gpu``; benchmarks/results/gpu.md says how to run it.

Every part can run alone, ends within eight minutes, and writes its results as they come. It runs on torch
2.10 to 2.15; what a version lacks is a line in the results (``encoder.attention=varlen`` needs 2.11). Needed
are torch, transformers, tokenizers, safetensors, numpy and what transformers itself depends on
(huggingface_hub, httpx, PyYAML, packaging, regex, filelock, tqdm). Two parts need more, to be carried along
as wheels where there is no network: ``checks`` pytest (pluggy, iniconfig, pygments) and pyarrow, ``decoder``
peft (accelerate, psutil). Without it such a part says so in one line and leaves out what needs it.
Vocabulary, texts and weights are made on the spot.
"""
