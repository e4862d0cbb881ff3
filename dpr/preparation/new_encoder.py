"""``dpr new-encoder``: makes a small encoder and a WordPiece vocabulary learned from the corpus that it is
for. The weights are learned in training.

The vocabulary is the same from run to run. The trainer of the ``tokenizers`` package breaks ties by token
number, and numbers its first tokens in the order of a randomly seeded hash table, so two runs on one text
differ. Here all single characters get their numbers beforehand, in sorted order, alone and as continuation;
every later number then follows from the counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from dpr.core.errors import ConfigError, InputError
from dpr.core.logs import get_logger
from dpr.core.paths import user_path
from dpr.core.records import Passage
from dpr.data.tensorizer import Tensorizer
from dpr.data.tokenizer_files import load_tokenizer
from dpr.formats.checkpoints import ENCODER_FOLDER, is_checkpoint
from dpr.formats.corpora import read_passages
from dpr.formats.question_sets import read_questions
from dpr.formats.run_folders import resolve_checkpoint
from dpr.formats.token_frequencies import TokenFrequencies
from dpr.storage.checksums import content_sha256
from dpr.storage.durable import durable_folder, write_json
from dpr.storage.outputs import output, require_writable
from dpr.storage.untrusted import read_json

logger = get_logger(__name__)

_UNKNOWN = "[UNK]"
_CONTINUATION = "##"
_MOST_CHARACTERS = 1000  # the most frequent ones get tokens; words with others become [UNK]
_MANY_CHARACTERS = 50_000_000  # from this number on, learning may take longer than ten seconds
_PASSAGES_AT_ONCE = 1000
_WHOLE = 1 << 24  # tokens; passages are counted uncut
_RANGE = 0.1  # standard deviation of a static encoder's random numbers


@dataclass(frozen=True, slots=True)
class EncoderShape:
    """Size of a BERT encoder (or of a static one, without layers) and vocabulary. ``num_heads`` 0 means about
    one head per 64 of ``hidden_size``."""

    num_layers: int = 1
    hidden_size: int = 256
    num_heads: int = 0
    max_positions: int = 512
    vocab_size: int = 30_000
    lower_case: bool = True
    num_unused: int = 32

    def heads(self) -> int:
        """Returns the number of attention heads; 0 without layers. Raises ConfigError if the width is not a
        multiple of ``num_heads``."""
        if min(self.hidden_size, self.max_positions) < 1 or self.num_layers < 0:
            raise ConfigError("hidden and max_positions must be at least 1, layers 0 or more")
        if not self.num_layers:
            return 0
        heads = min(self.num_heads or max(1, self.hidden_size // 64), self.hidden_size)
        while self.hidden_size % heads:
            heads -= 1
        if self.num_heads not in (0, heads):
            raise ConfigError(
                f"hidden_size={self.hidden_size} is not a multiple of num_heads={self.num_heads};"
                f" num_heads={heads} fits"
            )
        return heads


def new_encoder(
    out: str | Path,
    corpus: str | Path,
    question_files: Sequence[str | Path] = (),
    *,
    shape: EncoderShape,
    tokenizer: str | None = None,
    overwrite: bool = False,
) -> int:
    """Writes an encoder with random weights, and a vocabulary learned from a corpus and questions (of the
    training set only), into the folder ``out``. Returns the size of the vocabulary. Does nothing if ``out``
    was made from the same inputs and settings before.

    Args:
        tokenizer: a model whose tokenizer is used in place of a new one: a name, a checkpoint, a run or a
        folder of transformers.

    Raises:
        ConfigError: the sizes do not fit together.
        InputError: ``out`` exists, made from other inputs or settings, and ``overwrite`` is false; or there
        is no text.
        OutputError: ``out`` cannot be written.
    """
    from transformers import BertTokenizer

    out = user_path(out)
    sources = [user_path(file) for file in (corpus, *question_files)]
    require_writable(out, folder=True)
    heads = shape.heads()
    made_of = {"texts": [content_sha256(file) for file in sources], **asdict(shape)}
    taken = None
    if tokenizer is not None:
        import dpr.models.static  # noqa: F401 (transformers warns of a family that it does not know)

        model = user_path(tokenizer)
        if model.is_dir() and is_checkpoint(checkpoint := resolve_checkpoint(model)):
            model = checkpoint / ENCODER_FOLDER
        taken = load_tokenizer(model if model.is_dir() else tokenizer)
        made_of["tokenizer"] = Tensorizer(taken, sequence_length=_WHOLE).fingerprint

    def texts() -> Iterator[str]:
        for passage in read_passages(sources[0]):
            yield passage.title
            yield passage.text
        for file in sources[1:]:
            yield from (question.text for question in read_questions(file))

    metadata = {"kind": "encoder without weights", "made_of": made_of}
    with output(out, made_of, overwrite=overwrite) as is_missing:
        if not is_missing:
            return int(read_json(out / "config.json")["vocab_size"])
        with durable_folder(out, overwrite=overwrite, metadata=metadata) as folder:
            if taken is None:
                vocabulary = train_vocabulary(texts, shape)
                if len(vocabulary) < shape.vocab_size:
                    logger.info(
                        "the vocabulary has %d tokens of at most %d, since the text has no more different pieces",
                        len(vocabulary),
                        shape.vocab_size,
                    )
                (folder / "vocab.txt").write_text(
                    "".join(f"{token}\n" for token in vocabulary), encoding="utf-8"
                )
                numbers = {token: number for number, token in enumerate(vocabulary)}
                taken = BertTokenizer(
                    vocab=numbers, do_lower_case=shape.lower_case, model_max_length=shape.max_positions
                )
            taken.save_pretrained(str(folder))
            loaded = load_tokenizer(folder)
            size = len(loaded)
            config: dict[str, object] = {
                "architectures": ["StaticBackbone"],
                "model_type": "static",
                "vocab_size": size,
                "pad_token_id": loaded.pad_token_id or 0,
                "hidden_size": shape.hidden_size,
                "initializer_range": _RANGE,
            }
            if shape.num_layers:
                config |= {
                    "architectures": ["BertModel"],
                    "model_type": "bert",
                    "num_hidden_layers": shape.num_layers,
                    "num_attention_heads": heads,
                    "intermediate_size": 4 * shape.hidden_size,
                    "max_position_embeddings": shape.max_positions,
                    "hidden_act": "gelu",
                    "hidden_dropout_prob": 0.1,
                    "attention_probs_dropout_prob": 0.1,
                    "initializer_range": 0.02,
                    "layer_norm_eps": 1e-12,
                    "type_vocab_size": 2,
                }
            write_json(folder / "config.json", config)
            count_tokens(loaded, read_passages(sources[0]), vocab_size=size).write(folder)
    return size


def count_tokens(tokenizer: Any, passages: Iterable[Passage], *, vocab_size: int) -> TokenFrequencies:
    """Counts in how many passages each of the ``vocab_size`` tokens of a fast tokenizer occurs. Passages are
    as towers see them, with titles and special tokens."""
    tensorizer = Tensorizer(tokenizer, sequence_length=_WHOLE)
    counts = np.zeros(vocab_size, dtype=np.int64)
    total = 0
    length = 0
    remaining = iter(passages)
    while part := list(islice(remaining, _PASSAGES_AT_ONCE)):
        for tokens in tensorizer.passage_tokens(part):
            counts[np.unique(tokens)] += 1
            length += len(tokens)
        total += len(part)
    return TokenFrequencies(total, counts, length / max(total, 1))


def train_vocabulary(texts: Callable[[], Iterable[str]], shape: EncoderShape) -> list[str]:
    """Learns ``shape.vocab_size`` tokens, reserved ones included, in the order of their numbers.

    ``texts`` is called twice, so that the texts need not be held in memory.

    Raises:
        ConfigError: ``vocab_size`` leaves no room for the characters of the texts.
        InputError: the texts hold no character.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    normalizer = normalizers.BertNormalizer(lowercase=shape.lower_case)
    counts: Counter[str] = Counter()
    for text in texts():
        counts.update(normalizer.normalize_str(text))
    most_frequent = sorted((-count, sign) for sign, count in counts.items() if not sign.isspace())[
        :_MOST_CHARACTERS
    ]
    characters = sorted(sign for _, sign in most_frequent)
    if not characters:
        raise InputError("the corpus holds no text to learn a vocabulary from")
    # [unusedN] slots can later take special tokens without a change of size.
    first = [
        "[PAD]",
        *(f"[unused{number}]" for number in range(shape.num_unused)),
        _UNKNOWN,
        "[CLS]",
        "[SEP]",
        "[MASK]",
    ]
    first += [*characters, *(_CONTINUATION + sign for sign in characters)]
    if shape.vocab_size < len(first):
        raise ConfigError(
            f"vocab_size={shape.vocab_size} is too small; the reserved tokens and single characters alone are"
            f" {len(first)}"
        )
    tokenizer = Tokenizer(models.WordPiece(unk_token=_UNKNOWN))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=shape.vocab_size,
        special_tokens=first,
        initial_alphabet=characters,
        limit_alphabet=len(characters),
        show_progress=False,
    )
    if counts.total() > _MANY_CHARACTERS:
        logger.info("learning a vocabulary from %s characters of text", f"{counts.total():,}")
    tokenizer.train_from_iterator(texts(), trainer)
    numbers = tokenizer.get_vocab()
    return sorted(numbers, key=numbers.__getitem__)
