"""A WordPiece vocabulary from one's own text, the same from run to run.

The trainer of the ``tokenizers`` package breaks ties by token number, and numbers its first tokens in the order of a randomly seeded hash
table, so two runs on one text differ. Here all single characters get their numbers beforehand, in sorted order, alone and as continuation;
every later number then follows from the counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from dpr.core.errors import ConfigError, InputError

if TYPE_CHECKING:
    from tokenizers.normalizers import Normalizer

PAD, UNK, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
CONTINUATION = "##"


def reserved_tokens(num_unused: int) -> list[str]:
    """The tokens a BERT vocabulary starts with; ``[unusedN]`` slots can later take special tokens without a change of size."""
    return [PAD, *(f"[unused{number}]" for number in range(num_unused)), UNK, CLS, SEP, MASK]


def train_vocabulary(
    texts: Callable[[], Iterable[str]], *, size: int, lower_case: bool = True, num_unused: int = 32, max_characters: int = 1000
) -> list[str]:
    """Learns ``size`` tokens, reserved ones included, from texts, in the order of their numbers.

    Args:
        texts: called twice, so that the texts need not be held in memory.
        max_characters: the most frequent characters that get tokens; words with others become ``[UNK]``.

    Raises:
        ConfigError: ``size`` leaves no room for the characters of the texts.
        InputError: the texts hold no character.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    normalizer = bert_normalizer(lower_case)
    counts: Counter[str] = Counter()
    for text in texts():
        counts.update(normalizer.normalize_str(text))
    most_frequent = sorted((-count, sign) for sign, count in counts.items() if not sign.isspace())[:max_characters]
    characters = sorted(sign for _, sign in most_frequent)
    if not characters:
        raise InputError("the corpus holds no text to learn a vocabulary from")
    first = [*reserved_tokens(num_unused), *characters, *(CONTINUATION + sign for sign in characters)]
    if size < len(first):
        raise ConfigError(f"--vocab-size {size} is too small; the reserved tokens and single characters alone are {len(first)}")
    tokenizer = Tokenizer(models.WordPiece(unk_token=UNK))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=first, initial_alphabet=characters, limit_alphabet=len(characters), show_progress=False
    )
    tokenizer.train_from_iterator(texts(), trainer)
    numbers = tokenizer.get_vocab()
    return sorted(numbers, key=numbers.__getitem__)


def bert_normalizer(lower_case: bool) -> Normalizer:
    """BERT's clean-up: control characters, Chinese characters apart, and, in lower case, accents stripped."""
    from tokenizers import normalizers

    return normalizers.BertNormalizer(lowercase=lower_case)
