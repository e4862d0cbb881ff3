"""Docstrings of Python files, without their reStructuredText. The code is parsed, never run."""

from __future__ import annotations

import ast
import inspect
import re
import warnings
from collections.abc import Iterable, Iterator
from pathlib import PurePath

from dpr.formats.documents.document import Block, Document, Section, one_line

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_TARGET = re.compile(r"`([^`<]+?)\s*<[^`>]+>`_{1,2}")
RULE = re.compile(r"[-=~^*+#\"'`.:_|\s]{3,}")
"""A line of signs only: a row under a title, or of a table."""
_VERSION_NOTE = re.compile(
    r"\.\. *(versionadded|versionchanged|deprecated|index|currentmodule|module|autosummary|plot)::"
)
_DIRECTIVE = re.compile(r"\.\. *[\w:-]+::|^:(param|type|return|returns|rtype|raises|keyword|arg)\b")
_ROLE = re.compile(r":[a-z][\w:+.-]*:`[~!.]?([^`<]*?)(?:\s*<[^`>]*>)?`")


def read_python(code: str | bytes, path: PurePath) -> Document:
    """A section for every docstring, headed by the name of what it documents, as words; the title is that of
    the module.

    Raises:
        SyntaxError: it is not Python of this interpreter's version; also ValueError and RecursionError.
    """
    module = ".".join(part for part in path.with_suffix("").parts if part not in ("__init__", "/", ".."))
    sections = []
    for name, node in documented(parse(code, str(path)), module):
        text = ast.get_docstring(node, clean=False)
        if not text or name.endswith("__"):  # what __init__ and the like do is said by their class
            continue
        paragraphs = [one_line(clean_markup(part)) for part in inspect.cleandoc(text).split("\n\n")]
        inner = name[len(module) :].lstrip(".")
        line = node.body[0].lineno
        sections.append(
            Section(
                (name_as_words(inner),) if inner else (),
                tuple(Block(part) for part in paragraphs if part),
                line,
            )
        )
    return Document(
        name_as_words(module),
        tuple(section for section in sections if section.blocks),
        has_written_headings=False,
    )


def parse(code: str | bytes, name: str) -> ast.Module:
    """The tree of a file; invalid escapes in other people's strings are no warning here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(code, filename=name)


def documented(tree: ast.Module, module: str) -> Iterator[tuple[str, Documented]]:
    """The module, its classes, functions and methods, also those under ``if`` and ``try``; not what functions
    define inside."""
    yield module, tree
    stack: list[tuple[str, Iterable[ast.stmt]]] = [(module, tree.body)]
    while stack:
        prefix, body = stack.pop()
        for statement in body:
            if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{prefix}.{statement.name}"
                yield name, statement
                if isinstance(statement, ast.ClassDef):
                    stack.append((name, statement.body))
            elif isinstance(statement, ast.If | ast.Try):
                stack.append((prefix, statement.body))
                stack.append((prefix, statement.orelse))


def name_as_words(name: str) -> str:
    """``pandas.io.parsers.TextFileReader.get_chunk`` -> ``pandas io parsers Text File Reader get chunk``."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name)
    return " ".join(re.split(r"[\W_]+", apart)).strip()


def clean_markup(text: str) -> str:
    """Keeps the prose: takes out interpreter sessions, reStructuredText roles, directives and rules, and
    back-quotes."""
    lines = []
    in_session = False
    for line in text.split("\n"):
        stripped = line.strip()
        in_session = bool(stripped) and (in_session or stripped.startswith((">>>", "In [")))
        if in_session or RULE.fullmatch(stripped) or _VERSION_NOTE.match(stripped):
            continue
        lines.append(_DIRECTIVE.sub("", stripped))
    lines = [
        line if line.isprintable() else "".join(sign if sign.isprintable() else " " for sign in line)
        for line in lines
    ]
    return _TARGET.sub(r"\1", _ROLE.sub(r"\1", "\n".join(lines))).replace("`", "")
