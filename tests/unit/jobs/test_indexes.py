import os
from pathlib import Path

import pytest

from dpr.core.errors import InputError
from dpr.embedding.source import PassageSource
from dpr.retrieval.settings import IndexerConfig
from dpr.retrieval.sides import index_choice, open_text_index


def write_corpus(path: Path, middle: str) -> None:
    path.write_text(
        "".join(
            f"p{row}\t{'filler ' * 2000}{middle if row == 100 else 'word'}\ttitle{row}\n"
            for row in range(200)
        )
    )


def opened(sources: list[PassageSource], index: str) -> None:
    open_text_index(index_choice(IndexerConfig(kind="bm25")), sources, index)


@pytest.mark.parametrize(
    "options",
    [{"text_col": 2, "title_col": 1}, {"title_col": 5}, {"normalize": True}, {"id_prefix": "w:"}, {}],
)
def test_a_saved_bm25_index_of_other_texts_is_refused(tmp_path: Path, options: dict[str, object]) -> None:
    """Other settings of the passages, or a word in the middle of a file of the same size and time."""
    corpus, index = tmp_path / "c.tsv", str(tmp_path / "index")
    write_corpus(corpus, "lamp")
    times = corpus.stat()
    opened([PassageSource(corpus)], index)
    # changes no word of it
    opened([PassageSource(corpus, name="another", passage_prefix="passage: ")], index)
    if not options:
        write_corpus(corpus, "sofa")
        os.utime(corpus, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(InputError, match="remove it to build it again"):
        opened([PassageSource(corpus, **options)], index)  # type: ignore[arg-type]
