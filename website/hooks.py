"""Puts the repository's own pages on the site, at the paths that they have in the repository.

The links between them are relative, so they hold on the site as they do in the repository, and no text
exists twice. The notebook becomes a page. A page of results that the navigation does not name is added to it.
"""

import ast
import json
import logging
import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).resolve().parent))  # of the module below

from commands import SETTINGS_PAGE, command_pages, settings_page

REPOSITORY = Path(__file__).resolve().parent.parent
PATTERNS = ("*.md", "LICENSE", "CITATION.cff", "docs/*", "benchmarks/results/*", "examples/*.ipynb")
NOTEBOOK = "examples/first_steps.ipynb"
HOME = "README.md"
logger = logging.getLogger("mkdocs.hooks.dpr")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Adds the pages of results and of the commands to the navigation, in the order of their names."""
    project = part(config.nav, "Project")
    results = part(project, "Results")
    pages = sorted((REPOSITORY / "benchmarks" / "results").glob("*.md"))
    names = [page.relative_to(REPOSITORY).as_posix() for page in pages]
    results += [name for name in names if name not in results]
    commands = part(part(config.nav, "Reference"), "Commands")
    commands += list(command_pages())
    return config


def part(entries: list, name: str) -> list:
    """Returns the entries below a heading of the navigation."""
    return next(entry[name] for entry in entries if isinstance(entry, dict) and name in entry)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the repository's pages, pictures and the page of the notebook."""
    for pattern in PATTERNS:
        for path in sorted(REPOSITORY.glob(pattern)):
            if path.is_file():
                name = path.relative_to(REPOSITORY).as_posix()
                files.append(File.generated(config, name, abs_src_path=str(path)))
    page = Path(NOTEBOOK).with_suffix(".md").as_posix()
    files.append(File.generated(config, page, content=notebook_page(REPOSITORY / NOTEBOOK)))
    made = {SETTINGS_PAGE: settings_page(), **command_pages()}
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    written = sorted((REPOSITORY / "website" / "pages" / "reference").glob("*.md"))
    reference = [page.read_text(encoding="utf-8") for page in written]
    check_reference(REPOSITORY / "dpr" / "__init__.py", "\n".join([*reference, made[SETTINGS_PAGE]]))
    return files


def on_page_markdown(markdown: str, page, config: MkDocsConfig, files: Files) -> str:
    """Follows GitHub where Python-Markdown differs, and adapts what a page of a repository has to a site's."""
    if page.file.src_uri == HOME:
        markdown = markdown.replace(f"]({NOTEBOOK})", f"]({Path(NOTEBOOK).with_suffix('.md').as_posix()})")
        # The site fetches nothing from elsewhere, and badges are for the repository's own page.
        markdown = re.sub(
            r"^(\[?!\[[^]]*\]\(https://img\.shields\.io/.*\n)+", "", markdown, flags=re.MULTILINE
        )
    folder = (REPOSITORY / page.file.src_uri).parent
    markdown = with_source_links(markdown, folder, config.repo_url or "", set(files.src_uris))
    return with_lists(with_titles(markdown, folder))


def with_source_links(markdown: str, folder: Path, address: str, published: set[str]) -> str:
    """Leads links to source files to the repository at ``address``; without one their text remains."""

    def led(match: re.Match[str]) -> str:
        target = (folder / match["path"]).resolve()
        if not target.exists() or not target.is_relative_to(REPOSITORY):
            return match[0]
        name = target.relative_to(REPOSITORY).as_posix()
        if name in published:
            return match[0]
        return f"[{match['text']}]({address}/blob/main/{name})" if address else match["text"]

    return re.sub(r"(?<!!)\[(?P<text>[^][]*)\]\((?P<path>[^():#]+)\)", led, markdown)


def with_titles(markdown: str, folder: Path) -> str:
    """Replaces the text of links such as ``[search.md](search.md)`` by the title of the page."""

    def titled(match: re.Match[str]) -> str:
        target = folder / match["path"]
        if not target.is_file():
            return match[0]
        heading, _, _ = target.read_text(encoding="utf-8").partition("\n")
        return f"[{heading.removeprefix('# ')}]({match['path']}{match['anchor']})"

    return re.sub(r"\[\w+\.md\]\((?P<path>[^)#]+\.md)(?P<anchor>[^)]*)\)", titled, markdown)


def with_lists(markdown: str) -> str:
    """Puts an empty line between a paragraph and the list that follows it, without which a list is text, and
    indents code in a list by the four spaces of Python-Markdown instead of the two of GitHub."""
    lines: list[str] = []
    fence = ""
    is_in_list = False
    for line in markdown.split("\n"):
        mark = re.match(r" *(```|~~~)", line)
        if mark and fence in ("", mark[1]):
            fence = "" if fence else mark[1]
        before = lines[-1] if lines else ""
        starts = re.match(r"(\* |- |\d+\. )", line)
        is_text = before and not re.match(r"(\* |- |\d+\. | )", before)
        if not fence and starts and is_text:
            lines.append("")
        if line and not line.startswith(" "):
            is_in_list = bool(starts)
        is_code = not fence and is_in_list and line.startswith(" " * 6)
        lines.append(f"  {line}" if is_code else line)
    return "\n".join(lines)


def notebook_page(path: Path) -> str:
    """Returns the cells of a notebook as Markdown, with the output that they print where it is stored."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        printed = "".join("".join(output.get("text", "")) for output in cell["outputs"])
        if printed:
            parts.append(f"```text\n{printed.rstrip()}\n```")
    title, *rest = parts
    download = f"This page is a notebook: [{path.name}]({path.name})."
    heading, _, opening = title.partition("\n")
    return "\n\n".join([heading, download, opening, *rest])


def check_reference(package: Path, reference: str) -> None:
    """Warns of a public name that the reference does not have exactly once, and so fails a strict build."""
    described = re.findall(r"^::: dpr\.(\w+)$", reference, re.MULTILINE)
    described += re.findall(r"^##.*\.(\w+) }$", reference, re.MULTILINE)
    for name in public_names(package):
        if described.count(name) != 1:
            logger.warning(f"website/pages/reference has dpr.{name} {described.count(name)} times")


def public_names(package: Path) -> list[str]:
    """Returns the names of ``dpr.__all__``, read without importing the package."""
    for node in ast.parse(package.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "_MODULES":
            modules = ast.literal_eval(node.value)
            return sorted(name for names in modules.values() for name in names.split())
    raise ValueError(f"{package} has no _MODULES")
