"""Names, methods and arguments that docs/api.md mentions are there: in its blocks, and in code within sentences."""

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest

import dpr
from dpr.evaluation.result import Evaluation
from dpr.mining.settings import MineCommand
from dpr.training.settings import TrainingSettings, TrainNode
from tests.architecture.source_files import REPOSITORY

PAGE = (REPOSITORY / "docs" / "api.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"```python\n(.+?)```", re.DOTALL)
KINDS = {
    "model": dpr.BiEncoder,
    "again": dpr.BiEncoder,
    "retriever": dpr.Retriever,
    "trainer": dpr.BiEncoderTrainer,
    "trained": Evaluation,
    "dpr": dpr,
}
"""What the variables of the page are."""
SET_LATER = {"BiEncoder": {"settings", "tensorizer", "options"}, "BiEncoderTrainer": {"settings", "model"}}
"""Attributes of objects that their classes do not have."""


def fragments(page: str) -> Iterator[tuple[str, bool]]:
    """Yields the blocks of a page, and True with every piece of code in its sentences and tables, without the columns
    that show another library."""
    yield from ((block, False) for block in BLOCK.findall(page))
    for line in BLOCK.sub("", page).splitlines():
        is_foreign = line.startswith("|") and "From sentence-transformers" in page[: page.index(line)]
        ours = line.split(" | ", 1)[-1] if is_foreign else line
        for code in re.findall(r"`([^`]+)`", ours):
            yield re.sub(r"=(?=[,)]|$)", "=...", code), True


def names_of(settings: type) -> set[str]:
    return {item.name for item in fields(settings)}


def arguments_of(function: Any) -> set[str]:
    """Returns the names that a function takes, including those that its ``**`` passes on."""
    known = set(inspect.signature(function).parameters)
    if function is dpr.BiEncoderTrainer:
        known |= names_of(TrainingSettings) | names_of(TrainNode) | names_of(dpr.LossSettings)
    if function is dpr.mine_hard_negatives:
        known |= names_of(MineCommand)
    if function is dpr.BiEncoder:
        known |= arguments_of(dpr.BiEncoder.load)
    if getattr(function, "__name__", "").startswith("encode"):
        known |= {*inspect.signature(dpr.BiEncoder._encoded).parameters, "prompt", "prompt_name"}
    return known


def all_arguments() -> set[str]:
    holders = [kind for kind in KINDS.values() if isinstance(kind, type)]
    callables = [getattr(holder, name) for holder in holders for name in dir(holder) if name[0] != "_"]
    callables += [getattr(dpr, name) for name in dpr.__all__]
    return {name for each in callables if callable(each) for name in arguments_of(each)}


def found(node: ast.expr) -> Any:
    """Returns the object of this package that a name or an attribute stands for; None for others."""
    if isinstance(node, ast.Name):
        holders = (dpr.BiEncoder, dpr.Retriever, dpr.BiEncoderTrainer)
        methods = [getattr(holder, node.id) for holder in holders if node.id in dir(holder)]
        known = KINDS.get(node.id) or (getattr(dpr, node.id) if node.id in dpr.__all__ else None)
        return known or next(iter(methods), None)
    if isinstance(node, ast.Attribute):
        holder = found(node.value)
        if isinstance(holder, type) or holder is dpr:
            return getattr(holder, node.attr) if node.attr in dir(holder) else None
    return None


def mistakes(page: str) -> list[str]:
    """Returns the attributes and arguments in a page that nothing has."""
    wrong: list[str] = []
    arguments = all_arguments()
    for code, is_in_text in fragments(page):
        try:
            tree = ast.parse(code)
        except SyntaxError:  # a command, a path, part of a name
            continue
        for node in ast.walk(tree):
            if is_in_text and isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                wrong += {node.targets[0].id} - arguments
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                holder = found(node.value)
                later = SET_LATER.get(getattr(holder, "__name__", ""), set())
                is_ours = isinstance(holder, type) or holder is dpr
                if is_ours and node.attr not in {
                    *dir(holder),
                    *later,
                    *getattr(holder, "__annotations__", ()),
                }:
                    wrong.append(ast.unparse(node))
            if isinstance(node, ast.Call) and callable(called := found(node.func)):
                known = arguments_of(called)
                wrong += [
                    f"{ast.unparse(node.func)}({key.arg}=)" for key in node.keywords if key.arg not in known
                ]
    return wrong


def test_names_and_arguments_of_the_page_exist() -> None:
    calls = [code for code, _ in fragments(PAGE) if "(" in code]
    assert len(calls) > 40
    assert not mistakes(PAGE)


@pytest.mark.parametrize(
    ("right", "misspelt"),
    [
        ("indexer=", "indexr="),
        ("encode(texts, truncate_dim=128)", "encode(texts, truncate_dims=128)"),
        ('`metrics=["ndcg@5"', '`metric=["ndcg@5"'),
        ("`corpus=`", "`corpora=`"),
        ("per_question=2", "per_questions=2"),
        ("num_train_epochs=3,", "num_epochs=3,"),
        ("retriever.delete(", "retriever.remove("),
        ("patience=3", "patient=3"),
        ("skip_same_id=True", "skip_same=True"),
        ("dpr.compare(", "dpr.compared("),
        ("model.keep_dimensions(64)", "model.keep_dimension(64)"),
    ],
)
def test_misspelt_ones_are_found(right: str, misspelt: str) -> None:
    page = (
        PAGE
        + "\n`dpr.evaluate(model, queries, skip_same_id=True)` and `Retriever.build(model, texts, indexer=)`\n"
    )
    assert right in page and not mistakes(page)
    assert mistakes(page.replace(right, misspelt))
