"""A folder for another library: written, opened by that library, compared, and only then given its name; or uploaded as a repository of the
Hugging Face hub."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from dpr.core.errors import ConfigError, InputError, first_line
from dpr.core.logs import get_logger
from dpr.export import onnx_folder, sentence_transformers
from dpr.export.adapters import merged
from dpr.export.checking import Checked, Texts, check, format_of, made_up_texts, program
from dpr.export.model_card import README, CardFacts, model_card
from dpr.export.servers import check_servers
from dpr.export.tower_files import without_bars
from dpr.models.biencoder import BiEncoder
from dpr.storage.durable import MANIFEST, durable_folder, read_manifest, verify_folder
from dpr.storage.outputs import output

logger = get_logger(__name__)

ATTRIBUTES = ".gitattributes"
LARGE_FILES = "".join(f"{pattern} filter=lfs diff=lfs merge=lfs -text\n" for pattern in ("*.safetensors", "*.onnx", "*.onnx.data"))
"""What ``.gitattributes`` of a repository says, so that git stores large files apart, as the hub does."""
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def export_folder(
    model: BiEncoder,
    target: Path,
    name: str,
    *,
    source: str,
    facts: CardFacts | None = None,
    more: Texts | None = None,
    precisions: Sequence[str] = (),
    onnx: bool = False,
) -> None:
    """Writes ``model`` to ``target`` in the format ``name``, adapters merged; nothing if it is there already, made of the same model.

    Args:
        source: the model's name in messages.
        facts: what the model card says besides what the model shows.
        more: texts to compare besides the usual ones.
        precisions: of further graphs.
        onnx: whether graphs are written too (format ``sentence-transformers``).

    Raises:
        InputError: the format cannot say what the model does, the other library gives other vectors, or ``target`` is something else.
        OutputError: it cannot be written.
    """
    form, facts = format_of(name), facts or CardFacts(target.name)
    more_files = {name: value for name, value in (("precisions", list(precisions)), ("onnx", onnx)) if value}
    made_of = {"format": name, "model": model.fingerprint, **more_files, **facts.chosen()}
    with output(target, made_of, overwrite=None) as is_missing:
        if not is_missing:
            return
        whole = merged(model)
        with durable_folder(target, metadata={"kind": f"export for {name}", "made_of": made_of}) as folder:
            form.write(whole, folder, source=source)
            if onnx:
                sentence_transformers.write_graphs(whole, folder, source=source)
            (folder / ATTRIBUTES).write_text(LARGE_FILES)
            with without_bars():
                difference = check(whole, folder, form, source, more=more)
            measured = {}
            if precisions:
                written_by = sentence_transformers if onnx else onnx_folder
                texts = more or made_up_texts(whole.tensorizer, questions=100, passages=400)
                measured = written_by.write_lower_graphs(whole, folder, precisions, texts)
            report = [] if difference is None else [Checked(program(form), "the folder", "the library", difference)]
            if name == "sentence-transformers":
                report += check_servers(whole, folder)
            card = model_card(whole, facts, to=name, usage=form.usage(whole), report=report, precisions=measured)
            (folder / README).write_text(card, encoding="utf-8")
    for line in report:
        logger.info("%s", line)
    logger.info("%s written: %d weights of %d dimensions", target, len(whole.weights()), whole.dimension)


def files_to_push(folder: Path) -> list[str]:
    """The names of the files that the folder was written with, and no others. README.md may have been edited since.

    Raises:
        InputError: it is no exported folder, has no README.md, another file has changed, or there is a link in it, which may lead out.
    """
    names = sorted({*read_manifest(folder)["files"], MANIFEST})
    if README not in names:
        raise InputError(f"has no {README}", file=folder, expected="a folder that dpr export wrote")
    extra = "is not in the manifest"
    edited = (f"{README}: has ", f"{README}: content ")
    problems = [problem for problem in verify_folder(folder) if not problem.endswith(extra)]
    changed = [problem for problem in problems if problem.endswith("is a symbolic link") or not problem.startswith(edited)]
    if changed or not (folder / README).is_file():
        raise InputError(changed[0] if changed else f"{README} is missing", file=folder, hint="export the model again")
    return names


def push(folder: Path, repo: str, *, private: bool, message: str) -> str:
    """Uploads the folder's own files to ``repo``, which is made where it is absent, as one commit. Returns its address.

    Raises:
        ConfigError: ``repo`` is no name of a repository, nobody is logged in, or the network is switched off.
        InputError: as ``files_to_push``; or the hub refuses, or cannot be reached.
    """
    from huggingface_hub import CommitOperationAdd, HfApi, constants, get_token

    names = files_to_push(folder)
    if not _REPOSITORY.fullmatch(repo):
        raise ConfigError(f"repo={repo} is not the name of a repository, expected user/name")
    if constants.HF_HUB_OFFLINE:
        raise ConfigError("HF_HUB_OFFLINE=1 forbids uploads; unset it, or leave repo out to check the folder alone")
    if get_token() is None:
        raise ConfigError("not logged in to the hub, so nothing was uploaded; run hf auth login (or set HF_TOKEN) and the command again")
    api = HfApi()
    try:
        api.create_repo(repo, private=private, exist_ok=True)
        added = [CommitOperationAdd(path_in_repo=name, path_or_fileobj=str(folder / name)) for name in names]
        commit = api.create_commit(repo, added, commit_message=message)
    except Exception as error:  # of the client, of the library that it connects with, of the operating system
        raise InputError(f"was not uploaded to {repo} ({first_line(error)})", file=folder) from error
    return str(commit.commit_url)
