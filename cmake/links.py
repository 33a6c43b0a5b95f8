#!/usr/bin/env python3
"""links.py [TREE]: checks that relative links of README.md, CONTRIBUTING.md and docs lead to a file and a heading, and
that source files named in `code` exist. Prints FILE:LINE and the mistake. Anchors are GitHub's, which the site of
mkdocs.yml has too."""
import pathlib
import re
import sys
import unicodedata
import urllib.parse


def slug(heading, separator="-"):
    """Returns the anchor of a heading, as GitHub makes it."""
    text = unicodedata.normalize("NFC", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", separator)


def prose(path):
    """Returns (number, line) of each line outside of code blocks."""
    fence = None
    for number, line in enumerate(path.read_text().splitlines(), 1):
        mark = re.match(r" *(```+|~~~+)", line)
        if fence is None and mark:
            fence = mark[1]
        elif fence is not None:
            if line.strip().startswith(fence) and not line.strip().strip("`~"):
                fence = None
        else:
            yield number, line


def anchors(path, known={}):
    """Returns the anchors of a page's headings, each once: equal headings get -1, -2, …"""
    if path not in known:
        found = {}
        for _, line in prose(path):
            heading = re.match(r"#{1,6} +(.*?)[ #]*$", line)
            if heading:
                text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading[1])
                name = slug(re.sub(r"[`*]", "", text))
                count = found.get(name, 0)
                found[name] = count + 1
                found[f"{name}-{count}" if count else name] = 1
            for own in re.findall(r'<a (?:id|name)="([^"]+)"', line):
                found[own] = 1
        known[path] = set(found)
    return known[path]


def links(path):
    for number, line in prose(path):
        for target in re.findall(r"\]\(<?([^)\s>]+)[^)]*\)", re.sub(r"`[^`]*`", "", line)):
            if not re.match(r"[a-z][a-z+.-]*:", target):
                yield number, urllib.parse.unquote(target)


def sources(path):
    """Returns (number, name) of each source file or folder that a page names. Leaves out names with placeholders."""
    folders = "backends|cmake|configs|core|docs|launch|models|strategies|tests"
    for number, line in prose(path):
        for name in re.findall(rf"`((?:{folders})/[a-z0-9_./-]*)`", line):
            yield number, name


def faults(top):
    docs = top / "docs"
    for page in [top / "README.md", top / "CONTRIBUTING.md", *sorted(docs.rglob("*.md"))]:
        if not page.exists():
            continue
        for number, name in sources(page):
            # The glossary lists names that are not used any more.
            if page.name != "glossary.md" and not (top / name).exists():
                yield f"{page.relative_to(top)}:{number}: {name}: there is no such file; write its new name"
        for number, target in links(page):
            where = f"{page.relative_to(top)}:{number}"
            name, _, anchor = target.partition("#")
            file = (page.parent / name).resolve() if name else page
            if not file.exists():
                yield f"{where}: {target}: there is no such file"
            elif page.is_relative_to(docs) and not file.is_relative_to(docs):
                yield (f"{where}: {target}: is outside of docs, so the site has no such page; "
                       "write the name without a link")
            elif anchor and file.suffix == ".md" and anchor not in anchors(file):
                there = ", ".join(sorted(anchors(file)))
                yield f"{where}: {target}: that page has no heading with this anchor; it has {there}"


def main():
    top = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[1]).resolve()
    found = list(faults(top))
    print("\n".join(found) or "links: all lead somewhere")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
