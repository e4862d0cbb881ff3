"""A list of suspect labels (``dpr check-data suspects=``), applied to training data: they are dropped, or relabelled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from dpr.core.errors import InputError
from dpr.core.records import Passage, TrainingSample
from dpr.data.near_duplicates import plain
from dpr.formats.json_records import iter_json_objects
from dpr.formats.training_records import passage_from_json
from dpr.storage.checksums import content_sha256


class Corrections:
    """The list, as it was written or as it was shortened since.

    Args:
        relabel: a positive gives way to the passage that was found ``instead``, and a negative becomes a positive; else both are dropped.

    Raises:
        InputError: a line is none of such a list.
    """

    def __init__(self, file: Path, *, relabel: bool = False) -> None:
        self._file, self._relabel, self._used = file, relabel, 0
        self.identity = [content_sha256(file), relabel]
        self._suspects: dict[tuple[str, str, str], Passage | None] = {}
        for line, record in iter_json_objects(file):
            try:
                label, instead = record["label"], record.get("instead")
                key = label, plain(record["question"]), plain(passage_from_json(record["passage"], "passage").text)
                if label not in ("positive", "negative"):
                    raise ValueError(f"the label {label!r}")
                self._suspects[key] = passage_from_json(instead, "instead") if instead is not None else None
            except (KeyError, TypeError, AttributeError, ValueError) as error:
                hint = "dpr check-data ... suspects=FILE writes one"
                raise InputError(f"not a suspect: {error}", file=file, line=line, hint=hint) from None

    def apply(self, samples: Iterable[TrainingSample]) -> Iterator[TrainingSample]:
        """The samples as corrected; those without a positive are left out.

        Raises:
            InputError: no label is one of the list's.
        """
        for sample in samples:
            positives, negatives = list[Passage](), list[Passage]()
            for label, listed in (("positive", sample.positives), ("negative", sample.hard_negatives)):
                for passage in listed:
                    key = label, plain(sample.question), plain(passage.text)
                    if key not in self._suspects:
                        (positives if label == "positive" else negatives).append(passage)
                        continue
                    self._used += 1
                    if self._relabel:
                        positives.append(self._suspects[key] or passage)
            if positives:
                right = {plain(passage.text) for passage in positives}
                negatives = [passage for passage in negatives if plain(passage.text) not in right]
                yield replace(sample, positives=tuple(positives), hard_negatives=tuple(negatives))
        if self._suspects and not self._used:
            raise InputError("no suspect is a label of these data", file=self._file, hint="name the data that it was made of")
