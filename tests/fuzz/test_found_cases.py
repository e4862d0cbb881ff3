"""Files that a reader once stumbled over: with a traceback, or with a message of thousands of characters."""

from pathlib import Path

import pytest

from dpr.core.errors import InputError
from tests.fuzz.subjects import SUBJECTS
from tests.fuzz.test_readers import fault_of, lay_out

_NPY = b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': %s}%s\n"
_SETTINGS = (
    b'{"format_version": 1, "pooling": "cls", "projection_dim": 0, "question_length": 0, "shared": true,'
    b' "sequence_length": %s}'
)

FOUND: dict[str, tuple[str, bytes]] = {
    "a grade of 3000 characters": ("qrels tsv", b"1\td1\t2\n1\td2\t" + b"[" * 3000),
    "a list as metric": (
        "metrics file",
        b'{"question_set": "t", "num_questions": 3, "metrics": {"accuracy@1": [[]]}}',
    ),
    "a metric without end": (
        "metrics file",
        b'{"question_set": "t", "num_questions": 3, "metrics": {"accuracy@1": 1' + b"0" * 400 + b"}}",
    ),
    "no question set": ("metrics file", b'{"num_questions": 3, "metrics": {"accuracy@1": 1}}'),
    "a list as number of vectors": (
        "shard manifest",
        b'{"schema": 1, "metadata": {"num_vectors": [], "dimension": 4}, "files": {}}',
    ),
    "infinitely many vectors": (
        "shard manifest",
        b'{"schema": 1, "metadata": {"num_vectors": 1e999, "dimension": 4}, "files": {}}',
    ),
    "an open bracket in a header": ("shard vectors", _NPY % (b"(3, 4", b" " * 58)),
    "an open text in a header": ("shard ids", _NPY % (b"('3, 4), ", b" " * 55)),
    "a run that is a text": ("run.json", b'"x"'),
    "a name that is too long": ("run.json", b'{"best_checkpoint": "%s"}' % (b"x" * 3000)),
    "settings that are a list": ("encoder settings", b"[null]"),
    "a list as length": ("checkpoint settings", _SETTINGS % b"[[]]"),
    "a length of 0": ("checkpoint settings", _SETTINGS % b"0"),
    "minus one head": (
        "checkpoint config",
        b'{"model_type": "bert", "vocab_size": 91, "hidden_size": 16, "num_attention_heads": -1}',
    ),
    "a tokenizer of another version": ("checkpoint tokenizer", b'{"version": "x"}'),
}


@pytest.mark.parametrize("case", FOUND)
def test_a_case_found_before_is_refused(case: str, tmp_path: Path) -> None:
    name, data = FOUND[case]
    subject = SUBJECTS[name]
    path = lay_out(subject, tmp_path, data)
    assert fault_of(subject, path) is None
    with pytest.raises(InputError):
        subject.read(path)


def test_a_step_without_end_is_a_damaged_line(tmp_path: Path) -> None:
    subject = SUBJECTS["metrics lines"]
    run = subject.read(
        lay_out(
            subject,
            tmp_path,
            b'{"step": 1, "train/loss": 2.0}\n{"step": 1' + b"0" * 400 + b', "train/loss": 2.0}\n',
        )
    )
    assert len(run.logs) == 1
    assert "1 lines" in run.notes[0]
