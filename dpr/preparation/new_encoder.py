"""``dpr new-encoder``: a small BERT of one's own, its vocabulary learned from the corpus it is for. Weights come with training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dpr.core.errors import ConfigError
from dpr.core.logs import get_logger
from dpr.formats.checksums import content_sha256
from dpr.formats.corpora import read_passages
from dpr.formats.durable import durable_folder, read_json, write_json
from dpr.formats.outputs import output
from dpr.formats.question_sets import read_questions
from dpr.preparation.vocabulary import CLS, CONTINUATION, MASK, PAD, SEP, UNK, bert_normalizer, train_vocabulary

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class EncoderShape:
    """Size of a BERT encoder. ``num_heads`` 0 means one head per 64 of ``hidden_size``."""

    num_layers: int = 1
    hidden_size: int = 256
    num_heads: int = 0
    max_positions: int = 512

    def heads(self) -> int:
        """The number of attention heads.

        Raises:
            ConfigError: the width cannot be shared out to them.
        """
        if min(self.num_layers, self.hidden_size, self.max_positions) < 1:
            raise ConfigError("--layers, --hidden and --max-positions must be at least 1")
        heads = self.num_heads or max(1, self.hidden_size // 64)
        if self.hidden_size % heads:
            raise ConfigError(f"--hidden {self.hidden_size} is not a multiple of --heads {heads}")
        return heads


def texts_of(corpus: Path, question_files: Sequence[Path] = ()) -> Iterator[str]:
    """Titles and texts of a corpus, then the questions of question sets and training sets, which only train questions should be among."""
    for passage in read_passages(corpus):
        yield passage.title
        yield passage.text
    for file in question_files:
        for question in read_questions(file):
            yield question.text


def new_encoder(
    out: Path,
    corpus: Path,
    question_files: Sequence[Path] = (),
    *,
    shape: EncoderShape,
    vocab_size: int,
    lower_case: bool = True,
    num_unused: int = 32,
    overwrite: bool = False,
) -> int:
    """``write_encoder`` from a corpus and questions; where the same was made of them before, nothing is done.

    Raises:
        ConfigError: sizes that do not fit.
        InputError: ``out`` exists, made of something else, and ``overwrite`` is false; or there is no text.
        OutputError: ``out`` cannot be written.
    """
    vocabulary: dict[str, Any] = {"vocab_size": vocab_size, "lower_case": lower_case, "num_unused": num_unused}
    made_of = {"texts": [content_sha256(file) for file in (corpus, *question_files)], **asdict(shape), **vocabulary}
    with output(out, made_of, overwrite=overwrite) as is_missing:
        if is_missing:
            texts = partial(texts_of, corpus, question_files)
            return write_encoder(out, texts, shape=shape, **vocabulary, overwrite=overwrite, made_of=made_of)
        return int(read_json(out / "config.json")["vocab_size"])


def write_encoder(
    out: Path,
    texts: Callable[[], Iterable[str]],
    *,
    shape: EncoderShape,
    vocab_size: int,
    lower_case: bool = True,
    num_unused: int = 32,
    overwrite: bool = False,
    made_of: Mapping[str, Any] | None = None,
) -> int:
    """Writes a folder that Hugging Face's AutoConfig and AutoTokenizer read (no weights), and returns the size of its vocabulary.

    Equal texts and settings give equal files.

    Raises:
        ConfigError: sizes that do not fit.
        InputError: ``out`` exists and ``overwrite`` is false, or there is no text.
    """
    heads = shape.heads()
    with durable_folder(out, overwrite=overwrite, metadata={"kind": "encoder without weights", "made_of": made_of}) as folder:
        vocabulary = train_vocabulary(texts, size=vocab_size, lower_case=lower_case, num_unused=num_unused)
        if len(vocabulary) < vocab_size:
            logger.warning("the text holds only %d different pieces, fewer than --vocab-size %d", len(vocabulary), vocab_size)
        (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in vocabulary), encoding="utf-8")
        _write_tokenizer(folder, vocabulary, lower_case, shape.max_positions)
        write_json(folder / "config.json", _bert_config(shape, heads, vocabulary))
    return len(vocabulary)


def _write_tokenizer(folder: Path, vocabulary: list[str], lower_case: bool, max_length: int) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    numbers = {token: number for number, token in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordPiece(vocab=numbers, unk_token=UNK, continuing_subword_prefix=CONTINUATION))
    tokenizer.normalizer = bert_normalizer(lower_case)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{CLS} $A {SEP}",
        pair=f"{CLS} $A {SEP} $B:1 {SEP}:1",
        special_tokens=[(CLS, numbers[CLS]), (SEP, numbers[SEP])],
    )
    tokenizer.decoder = decoders.WordPiece(prefix=CONTINUATION)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in (PAD, UNK, CLS, SEP, MASK)])
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"pad_token": PAD, "unk_token": UNK, "cls_token": CLS, "sep_token": SEP, "mask_token": MASK}
    options = {"tokenizer_class": "BertTokenizer", "do_lower_case": lower_case, "model_max_length": max_length, "strip_accents": None}
    write_json(folder / "tokenizer_config.json", names | options | {"tokenize_chinese_chars": True})


def _bert_config(shape: EncoderShape, heads: int, vocabulary: list[str]) -> dict[str, object]:
    return {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "vocab_size": len(vocabulary),
        "pad_token_id": vocabulary.index(PAD),
        "hidden_size": shape.hidden_size,
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
