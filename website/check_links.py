"""Checks every link of a built site that leads into the site: its file and its anchor are there.

Usage: python website/check_links.py site
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The anchors of a page, and the addresses that it names."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors = {""}
        self.addresses: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for key, value in attrs:
            if key == "id" or (key == "name" and tag == "a"):
                self.anchors.add(value or "")
            if key in ("href", "src") and value is not None:
                self.addresses.append(value)


def main(site: Path) -> int:
    """Prints each broken link and the counts; returns 1 if a link is broken or there is no page."""
    pages = {path.resolve(): Page(path) for path in sorted(site.rglob("*.html"))}
    links = 0
    elsewhere = set()
    broken = []
    for path, page in pages.items():
        if path.name == "404.html":  # its addresses begin at the root of the published site
            continue
        for address in page.addresses:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                elsewhere.add(address)
                continue
            links += 1
            target = path if not parts.path else (path.parent / unquote(parts.path)).resolve()
            if target.is_dir():
                target = target / "index.html"
            missing = not target.is_file()
            if not missing and parts.fragment and target in pages:
                missing = unquote(parts.fragment) not in pages[target].anchors
            if missing:
                broken.append(f"{path.relative_to(site.resolve())}: {address}")
    for line in broken:
        print(line)
    print(f"{len(pages)} pages, {links} links, {len(broken)} broken")
    print(f"not followed: {len(elsewhere)} addresses elsewhere")
    return 1 if broken or not pages else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
