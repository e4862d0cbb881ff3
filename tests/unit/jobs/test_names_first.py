"""Commands look at what they are to write before they read what may be large."""

from pathlib import Path

import pytest

from dpr.cli.main import main
from dpr.data import pairs
from dpr.preparation import conversion, folder_data, new_encoder


@pytest.mark.parametrize(
    ("module", "line"),
    [
        (conversion, "prepare {there}/data.tsv out={there}/data.tsv/out.jsonl"),
        (folder_data, "prepare {there} out={other}/file/out"),
        (pairs, "prepare {there}/data.tsv pairs=mixed out={other}/file/out"),
        (new_encoder, "new-encoder corpus={there}/data.tsv out={there}/data.tsv/out"),
    ],
    ids=["prepare", "prepare-folder", "prepare-pairs", "new-encoder"],
)
def test_an_output_that_cannot_be_written_is_refused_before_anything_is_read(
    module: object,
    line: str,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    there, other = tmp_path_factory.mktemp("there"), tmp_path_factory.mktemp("other")
    (there / "data.tsv").write_text("question\tpassage\n")
    (other / "file").touch()
    monkeypatch.setattr(module, "content_sha256", lambda *_, **__: pytest.fail("data were read"))
    assert main(line.format(there=there, other=other).split()) == 3
    message = capsys.readouterr().err
    assert (
        "is not a folder" in message
        and str(Path(line.format(there=there, other=other).partition("out=")[2]).parent) in message
    )
