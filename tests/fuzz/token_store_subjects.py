"""Every file of a token store: what comes out is what was written, or nothing does."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import numpy as np

from dpr.core.records import PassageTokens, StoredPassage, StoreFacts
from dpr.formats.token_store import TokenPartWriter, TokenStore, finish_store
from dpr.storage.durable import MANIFEST, read_manifest, write_manifest
from dpr.storage.steps import Steps
from tests.fuzz.mutations import BYTES, JSON, Mutation
from tests.fuzz.subject import Files, Subject, contents

_FACTS: StoreFacts = {"kind": "token store", "rows": 4}
_ENDS = [2, 4]
_PASSAGES = [
    PassageTokens(title, range(8, 8 + size), (-size, 2**62 + size), size == 5)
    for size, title in ((3, [7, 9]), (5, None), (0, []))
]


def _write(folder: Path) -> None:
    steps = Steps(folder, _FACTS)
    for number in range(len(_ENDS)):
        part = TokenPartWriter(np.dtype("<u2"))
        numbers = [part.add_passage(passage) for passage in _PASSAGES]
        part.add_row([number, 65_535], numbers[:2], numbers[2:], [], scores=[0.5, -1.0, float("nan")])
        part.add_row([], numbers[1:2], [], numbers)
        part.write(steps, number)
    finish_store(steps, _ENDS)


@cache
def _files() -> Files:
    with tempfile.TemporaryDirectory() as temporary:
        _write(Path(temporary) / "s")
        return contents(Path(temporary) / "s", "s")


def _agreeing_manifests(folder: Path) -> None:
    """As if the damage had come before hashes were taken, so that only the checks of the records are left to
    find it."""
    metadata = read_manifest(folder / "s")["metadata"]
    (folder / "s" / MANIFEST).unlink()
    write_manifest(folder / "s", metadata)


def _read(path: Path) -> None:
    folder = next(parent for parent in path.parents if parent.name == "s")
    store = TokenStore(folder, _FACTS)
    assert len(store) == _ENDS[-1]
    for row in range(len(store)):
        sample = store[row]
        is_first = row % 2 == 0
        assert sample.question == ([row // 2, 65_535] if is_first else [])
        listed = (_PASSAGES[:2], _PASSAGES[2:], []) if is_first else (_PASSAGES[1:2], [], _PASSAGES)
        for stored, written in zip(
            (sample.positives, sample.hard_negatives, sample.other_negatives), listed, strict=True
        ):
            assert [_plain(passage) for passage in stored] == [
                (None if p.title is None else list(p.title), list(p.text), p.identity, p.has_score)
                for p in written
            ]
        scores = [
            passage.teacher_score
            for passage in sample.positives + sample.hard_negatives + sample.other_negatives
        ]
        assert scores == ([0.5, -1.0, None] if is_first else [None] * 4)


def _plain(passage: StoredPassage) -> tuple[object, ...]:
    return tuple(passage.tokens())


def _store_file(name: str, kinds: tuple[Mutation, ...], *, is_found_out: bool = False) -> Subject:
    """``is_found_out``: the manifests agree with the damage."""
    return Subject(
        f"s/{name}",
        _files,
        _read,
        kinds,
        beforehand=_agreeing_manifests if is_found_out else lambda folder: None,
        weight=0.7,
    )


TOKEN_STORES = {
    "token store manifest": _store_file(MANIFEST, JSON),
    **{
        f"token store {name}": _store_file(f"part-00001/{name}.npy", BYTES, is_found_out=True)
        for name in ("tokens", "passages", "rows", "slots", "scores")
    },
}
