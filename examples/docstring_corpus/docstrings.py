"""Pairs of question and passage from the docstrings of installed Python packages.

1. ``find_sources`` lists the source files of the standard library and of the packages of one environment, in
   sorted order.
2. ``read_docstrings`` parses each file with ``ast``; nothing is imported, so nothing of what is read can run.
3. ``split_docstring`` makes the first sentence the question and the rest, cleaned of markup, the passage.

The same environment gives the same list, whatever the number of processes.
"""

from __future__ import annotations

import ast
import gc
import importlib.util
import inspect
import multiprocessing
import os
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from dpr.core.errors import ConfigError
from dpr.core.logs import counted, get_logger
from dpr.preparation.passages import sentences

STANDARD_LIBRARY = "stdlib"
"""Name of the standard library among package names."""

THIS_PROJECT = "dpr"

# Read by default: the dependencies of this toolkit, so that other packages of an environment change nothing.
PACKAGES = "faiss huggingface_hub networkx numpy pandas scipy sympy".split()

# Tests say little, and copies of other people's packages say the same thing twice.
SKIPPED_FOLDERS = frozenset(
    "test tests testing _testing idle_test _internal site-packages dist-packages __pycache__ vendor vendored"
    " _vendor _vendored _vendored_packages vendors extern externals _extern third_party thirdparty".split()
)
SKIPPED_FILES = re.compile(r"(test_.*|.*_test|.*_tests|conftest|.*_pb2|.*_pb2_grpc)\.py")

MIN_QUESTION_WORDS = 4
MAX_QUESTION_WORDS = 32
MIN_PASSAGE_WORDS = 15
MAX_PASSAGE_WORDS = 200

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_TARGET = re.compile(r"`([^`<]+?)\s*<[^`>]+>`_{1,2}")
RULE = re.compile(r"[-=~^*+#\"'`.:_|\s]{3,}")
"""A line of signs only: a row under a title, or of a table."""
_VERSION_NOTE = re.compile(
    r"\.\. *(versionadded|versionchanged|deprecated|index|currentmodule|module|autosummary|plot)::"
)
_DIRECTIVE = re.compile(r"\.\. *[\w:-]+::|^:(param|type|return|returns|rtype|raises|keyword|arg)\b")
_ROLE = re.compile(r":[a-z][\w:+.-]*:`[~!.]?([^`<]*?)(?:\s*<[^`>]*>)?`")

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A Python file and the dotted name it would be imported by."""

    path: Path
    module: str


@dataclass(frozen=True, slots=True)
class Docstring:
    """One docstring of ``module``: its first sentence and the cleaned rest. ``name`` is the qualified name of
    what it documents."""

    name: str
    module: str
    summary: str
    body: str


def find_sources(
    packages: Sequence[str] | None = None, *, roots: Sequence[tuple[Path, bool]] | None = None
) -> list[SourceFile]:
    """Lists the Python files to read, sorted by module name.

    Args:
        packages: top-level names, ``stdlib`` for the standard library; ``None`` takes everything.
        roots: folders to look in, each with whether it is the standard library; by default those of the
        running environment.

    Raises:
        ConfigError: a name in ``packages`` has no source file there.
    """
    found: dict[str, SourceFile] = {}
    packages_seen: set[str] = set()
    for root, is_standard in roots if roots is not None else _environment_roots():
        for path in _python_files(root):
            parts = path.relative_to(root).with_suffix("").parts
            package = STANDARD_LIBRARY if is_standard else parts[0]
            # several projects put their packages into one namespace, such as google
            if not is_standard and len(parts) > 2 and not (root / parts[0] / "__init__.py").exists():
                package = ".".join(parts[:2])
            if parts[0] == THIS_PROJECT or (packages is not None and package not in packages):
                continue
            packages_seen.add(package)
            module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found.setdefault(module, SourceFile(path, module))
    missing = [package for package in packages or () if package not in packages_seen]
    if missing:
        raise ConfigError(
            f"--packages {' '.join(missing)}: no Python source of that name in this environment; use all or"
            f" {STANDARD_LIBRARY}"
        )
    return [found[module] for module in sorted(found)]


def default_packages() -> list[str]:
    """Returns the standard library and those of ``PACKAGES`` that are installed."""
    return [STANDARD_LIBRARY, *(name for name in PACKAGES if importlib.util.find_spec(name))]


def read_docstrings(sources: Sequence[SourceFile], *, processes: int = 1) -> list[Docstring]:
    """Reads all usable docstrings, in the order of ``sources``. Files that do not parse are left out and
    counted in the log."""
    what = "reading docstrings"
    if processes == 1 or len(sources) < 100:
        per_file: list[list[Docstring] | None] = [
            _read_file(source) for source in counted(sources, what, unit="files")
        ]
    else:
        # spawn: the caller may have threads running (numpy, torch), which a fork would copy in an unknown
        # state.
        with ProcessPoolExecutor(
            processes, mp_context=multiprocessing.get_context("spawn"), initializer=gc.disable
        ) as pool:
            read = pool.map(_read_file, sources, chunksize=64)
            per_file = list(counted(read, what, len(sources), unit="files"))
    unreadable = sum(docstrings is None for docstrings in per_file)
    if unreadable:
        logger.info(
            "%d of %d files are not valid Python for this interpreter and were left out",
            unreadable,
            len(sources),
        )
    return [docstring for docstrings in per_file for docstring in docstrings or ()]


def split_docstring(text: str) -> tuple[str, str] | None:
    """Cuts a docstring into its first sentence and the cleaned rest, or returns None where one of them is too
    short to be of use."""
    lead, _, rest = inspect.cleandoc(text).partition("\n\n")
    lead_lines = lead.split("\n")
    # A heading (title over a row of signs) is no sentence; what follows it is one.
    if len(lead_lines) == 2 and RULE.fullmatch(lead_lines[1].strip()):
        lead, _, rest = rest.partition("\n\n")
    summary, *more = sentences(" ".join(clean_markup(lead).split()))
    body_words = " ".join([*more, clean_markup(rest)]).split()
    if _FIELD.match(summary) or not MIN_QUESTION_WORDS <= len(_WORD.findall(summary)) <= MAX_QUESTION_WORDS:
        return None
    if sum(1 for word in body_words if _WORD.search(word)) < MIN_PASSAGE_WORDS:
        return None
    # Quotes at the ends of a text are lost in a passages TSV.
    return summary, " ".join(body_words[:MAX_PASSAGE_WORDS]).strip('" ')


_WORD = re.compile(r"[A-Za-z]{2,}|\d+")
# "name (type): what", "Args:", "x : float": the docstring starts with a list of fields, not with a sentence.
_FIELD = re.compile(
    r"[*\w.]+ *(\([^)]*\))?\)*"
    r" *:|(args|arguments|parameters|returns?|attributes|examples?|notes?|todo|fixme)\b *:?$",
    re.IGNORECASE,
)


def _environment_roots() -> list[tuple[Path, bool]]:
    """Returns the folders of the standard library and of installed packages, of the running interpreter
    only."""
    installed = dict.fromkeys(Path(sysconfig.get_path(kind)).resolve() for kind in ("purelib", "platlib"))
    return [(Path(sysconfig.get_path("stdlib")).resolve(), True), *((root, False) for root in installed)]


def _python_files(root: Path) -> Iterator[Path]:
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = sorted(
            name for name in subfolders if name not in SKIPPED_FOLDERS and name.isidentifier()
        )
        for name in sorted(files):
            if name.endswith(".py") and name[:-3].isidentifier() and not SKIPPED_FILES.fullmatch(name):
                yield Path(folder, name)


def _read_file(source: SourceFile) -> list[Docstring] | None:
    try:
        code = source.path.read_bytes()
        tree = parse(code, str(source.path))
    except (SyntaxError, ValueError, OSError, RecursionError, MemoryError):
        return None
    found = []
    for name, node in documented(tree, source.module):
        if name.endswith("__"):
            continue  # the class documents __init__ and the like
        text = ast.get_docstring(node, clean=False)
        parts = split_docstring(text) if text else None
        if parts is not None:
            found.append(Docstring(name, source.module, *parts))
    return found


def parse(code: str | bytes, name: str) -> ast.Module:
    """Returns the syntax tree of a file, without warnings of invalid escapes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(code, filename=name)


def documented(tree: ast.Module, module: str) -> Iterator[tuple[str, Documented]]:
    """Yields the module, its classes, functions and methods, also those under ``if`` and ``try``, but not
    definitions inside functions."""
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


def clean_markup(text: str) -> str:
    """Returns the prose: removes interpreter sessions, reStructuredText roles, directives and rules, and
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
