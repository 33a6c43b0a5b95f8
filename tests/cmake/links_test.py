"""Tests which mistakes cmake/links.py finds, and which lines it ignores."""
import pathlib
import subprocess
import sys
import tempfile

LINKS = pathlib.Path(__file__).parents[2] / "cmake/links.py"
GOOD = {
    "README.md": "# A\n[x](docs/b.md#two-words) [y](src/c.h) [web](https://example.org/none)\n",
    "src/c.h": "",
    "docs/b.md": "# B\n## Two words\n[self](#b) [up](#two-words) `[](code)`\n```cpp\nx[](int y) { }\n```\n## B\n"
                 "[second](#b-1)\n![picture](d/e.svg)\n",
    "docs/d/e.svg": "",
    "docs/g.md": "`docs/b.md` `docs/d/` `tests/X.cpp` `core/*.h`\n```\n`core/none.h`\n```\n",
    "docs/d/f.md": "### `key`: of [x](../b.md), once (*twice*)\n[g](#key-of-x-once-twice) [h](../b.md)\n",
}
BAD = [  # page, text, message
    ("README.md", "# A\n\n[x](docs/none.md)\n", "README.md:3: docs/none.md: there is no such file"),
    ("docs/b.md", "# B\n[x](#c)\n", "docs/b.md:2: #c: that page has no heading with this anchor; it has b"),
    ("docs/d/f.md", "[x](../b.md#none)\n", "docs/d/f.md:1: ../b.md#none: that page has no heading"),
    ("docs/b.md", "A\n`core/none.h`\n", "docs/b.md:2: core/none.h: there is no such file; write its new name"),
    ("docs/b.md", "[x](../src/c.h)\n", "docs/b.md:1: ../src/c.h: is outside of docs"),
]


def run(tree):
    return subprocess.run([sys.executable, LINKS, tree], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def write(tree, files):
    for name, text in files.items():
        path = pathlib.Path(tree, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


with tempfile.TemporaryDirectory() as tree:
    write(tree, GOOD)
    done = run(tree)
    if done.returncode != 0:
        sys.exit(f"FAILED: good links are refused:\n{done.stdout}")
for page, text, expected in BAD:
    with tempfile.TemporaryDirectory() as tree:
        write(tree, {**GOOD, page: text})
        done = run(tree)
        if done.returncode != 1 or expected not in done.stdout:
            sys.exit(f"FAILED: expected '{expected}', got exit {done.returncode}:\n{done.stdout}")
print("links: found what is broken, and nothing else")
