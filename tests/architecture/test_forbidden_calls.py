"""Calls that may stand nowhere in the package: code from files, pickles between ranks, writing past the one writer."""

import ast

import pytest

from tests.architecture.source_files import Source, all_sources, parse

MODULES = {"pickle", "cPickle", "dill", "shelve", "marshal", "joblib", "cloudpickle"}
BUILTINS = {"eval", "exec", "__import__"}
COLLECTIVES = "all_gather_object gather_object broadcast_object_list scatter_object_list".split()
METHODS = {
    **dict.fromkeys(COLLECTIVES, "only tensors travel between ranks"),
    **dict.fromkeys(("send_object_list", "recv_object_list"), "only tensors travel between ranks"),
    "instantiate": "objects are built by dpr/jobs, never from a _target_",
    "unsafe_load": "runs code from the file",
    "mktemp": "a race; use dpr/storage/durable.py",
}
DOTTED = {
    "os.system": "no shell",
    "os.popen": "no shell",
    "yaml.load": "runs code from the file; safe_load",
    "torch.save": "a pickle; safetensors",
    "np.memmap": "checksummed readers are in dpr/formats and dpr/storage",
}
# The one exception: the original's own file format is what ``torch.save`` makes of a dictionary of tensors,
# numbers and texts.
ALLOWED = {
    "dpr/formats/original/checkpoints.py": {"torch.save"},
    # whose code is run only if it is this toolkit's own file
    "dpr/export/sentence_transformers.py": {"library.SentenceTransformer"},
}
# Python's unpickler may only be subclassed, in the one file whose subclasses turn every name into a class
# that does nothing.
RESTRICTED_UNPICKLER = "dpr/formats/original/inert_pickle.py"
UNPICKLERS = {"Unpickler", "_Unpickler"}
# Elsewhere files are written only inside a ``with`` of one of these, so that nothing half-written is ever
# found.
WRITERS = {"durable_folder", "durable_file", "durable_text"}
MAY_WRITE = ("dpr/formats/", "dpr/storage/")


def dotted(node: ast.expr) -> str:
    """``torch.load`` for the expression of that name; empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = dotted(node.value)
        return f"{base}.{node.attr}" if base else node.attr
    return ""


def keyword(node: ast.Call, name: str) -> object:
    """The constant given for a keyword; None when absent; the node itself when it is not a constant."""
    for item in node.keywords:
        if item.arg == name:
            return item.value.value if isinstance(item.value, ast.Constant) else item.value
    return None


def call_fault(node: ast.Call) -> str | None:
    """Why this call is not allowed, anywhere."""
    name = dotted(node.func)
    leaf = name.rpartition(".")[2]
    if isinstance(node.func, ast.Name) and name in BUILTINS:
        return f"{name} runs code from data"
    if leaf in UNPICKLERS:
        return "calls what a file names; subclass it in dpr/formats/original/inert_pickle.py"
    if leaf in METHODS:
        return METHODS[leaf]
    if name in DOTTED:
        return DOTTED[name]
    if name == "torch.load" and keyword(node, "weights_only") is not True:
        return "torch.load without weights_only=True runs code from the file"
    if leaf == "load" and keyword(node, "allow_pickle") not in (None, False):
        return "allow_pickle runs code from the file"
    if keyword(node, "shell") not in (None, False):
        return "no shell"
    if keyword(node, "trust_remote_code") not in (None, False):
        return "code of model folders is never run"
    return None


def write_fault(node: ast.Call) -> str | None:
    """Why this call may stand only where files are written durably."""
    name = dotted(node.func)
    leaf = name.rpartition(".")[2]
    if leaf in ("write_text", "write_bytes", "save_file", "savez", "savetxt", "tofile") or name in (
        "np.save",
        "numpy.save",
        "json.dump",
    ):
        return "all output goes through dpr/storage/durable.py"
    if leaf == "open":
        position = (
            1
            if isinstance(node.func, ast.Name)
            or name.split(".")[0] in ("gzip", "bz2", "lzma", "io", "codecs")
            else 0
        )
        mode = keyword(node, "mode")
        if mode is None and len(node.args) > position and isinstance(node.args[position], ast.Constant):
            mode = node.args[position].value  # type: ignore[attr-defined]
        if isinstance(mode, str) and set(mode) & set("wax+"):
            return "all output goes through dpr/storage/durable.py"
    return None


def durable_lines(source: Source) -> set[int]:
    """Numbers of the lines that stand inside a ``with`` of the one writer."""
    return {
        line
        for node in ast.walk(source.tree)
        if isinstance(node, ast.With)
        and any(
            isinstance(item.context_expr, ast.Call) and dotted(item.context_expr.func) in WRITERS
            for item in node.items
        )
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def faults(source: Source) -> list[str]:
    """Forbidden imports and calls of one file."""
    found, durable = [], durable_lines(source)
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = (
                [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else [alias.name for alias in node.names]
            )
            is_restricted = (
                source.name == RESTRICTED_UNPICKLER
                and names == ["pickle"]
                and {alias.name for alias in node.names} <= UNPICKLERS
            )
            if any(name.split(".")[0] in MODULES for name in names) and not is_restricted:
                found.append(f"{source.where(node)}   (runs code from the file)")
            if isinstance(node, ast.ImportFrom) and {alias.name for alias in node.names} & {
                "instantiate",
                "all_gather_object",
            }:
                found.append(f"{source.where(node)}   (not used here)")
        if isinstance(node, ast.Call):
            why = None if dotted(node.func) in ALLOWED.get(source.name, ()) else call_fault(node)
            if (
                why is None
                and source.name.startswith("dpr/")
                and not source.name.startswith(MAY_WRITE)
                and node.lineno not in durable
            ):
                why = write_fault(node)
            if why:
                found.append(f"{source.where(node)}   ({why})")
    return found


def test_nothing_forbidden_is_called() -> None:
    found = [fault for source in all_sources() if source.name != "setup.py" for fault in faults(source)]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from pickle import loads",
        "from pickle import Unpickler",
        "Unpickler(file)",
        "eval('1')",
        "exec(text)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path, allow_pickle=True)",
        "np.load(path, allow_pickle=flag)",
        "yaml.load(text)",
        "subprocess.run(command, shell=True)",
        "os.system('ls')",
        "dist.all_gather_object(a, b)",
        "torch.distributed.broadcast_object_list(a)",
        "hydra.utils.instantiate(config)",
        "from hydra.utils import instantiate",
        "AutoModel.from_pretrained(name, trust_remote_code=True)",
        "open(path, 'w')",
        "open(path, mode='ab')",
        "path.open('x')",
        "gzip.open(path, 'wt')",
        "path.write_text('x')",
        "np.save(path, array)",
        "torch.save(state, path)",
        "json.dump(obj, file)",
    ],
)
def test_each_rule_finds_its_example(text: str) -> None:
    assert len(faults(parse("dpr/training/x.py", text))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "torch.load(p, weights_only=True)",
        "open(p)",
        "gzip.open(p, 'rt')",
        "p.open('rb')",
        "model.eval()",
        "np.load(p)",
        "json.dumps(x)",
        "with durable_folder(p) as folder:\n    np.save(folder / 'x', a)",
    ],
)
def test_harmless_calls_pass(text: str) -> None:
    assert not faults(parse("dpr/training/x.py", text))


def test_the_exception_is_for_one_call_of_one_file() -> None:
    assert not faults(parse("dpr/formats/original/checkpoints.py", "torch.save(state, file)"))
    others = parse("dpr/formats/original/checkpoints.py", "import pickle\ntorch.load(file)\neval(text)")
    assert len(faults(others)) == 3
    assert faults(parse("dpr/formats/results.py", "torch.save(state, file)"))


def test_only_one_file_may_subclass_the_unpickler() -> None:
    assert not faults(
        parse(RESTRICTED_UNPICKLER, "from pickle import Unpickler, _Unpickler\nclass Reader(Unpickler): pass")
    )
    for text in (
        "import pickle",
        "from pickle import Unpickler, loads",
        "from pickle import *",
        "Unpickler(file)",
        "from dill import load",
    ):
        assert faults(parse(RESTRICTED_UNPICKLER, text))
