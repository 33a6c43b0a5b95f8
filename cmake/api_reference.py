#!/usr/bin/env python3
"""Prints docs/api.md: the comments and the public declarations of include/convoy/*.h and of Communicator, as they are
in the headers."""
import pathlib
import re
import sys

TOP = pathlib.Path(__file__).resolve().parents[1]
ORDER = ["convoy.h", "job.h", "mpi.h", "trained.h", "replicas.h", "shards.h", "run.h", "share.h", "load.h",
         "model_of.h", "plugin.h", "core/communicator.h"]

INTRODUCTION = """# API of the C++ library

Generated from the headers by `cmake/api_reference.py`. Link `convoy::convoy` and include `<convoy/convoy.h>`, which \
includes all headers below but `mpi.h` and `plugin.h`. [Distribute the program you have](howto/own_program.md) shows \
their use step by step.
"""


def prose(lines):
    """Returns a file comment as Markdown; indented lines become a code block."""
    out, code = [], False
    for line in lines:
        text = line[3:] if line.startswith("// ") else line[2:]
        indented = text.startswith("  ")
        if indented and not code:
            out += ["", "```cpp" if re.search(r"[;{]$|#include", text) else "```"]
        elif code and text and not indented:
            out += ["```", ""]
        elif not code and re.match(r"[A-Z][a-z, ]+: ", text):
            out.append("")
        code = indented or (code and not text)
        out.append(text[2:] if indented else text)
    if code:
        out.append("```")
    return re.sub(r"\n+```\n", "\n```\n", re.sub(r"\n{3,}", "\n\n", "\n".join(out)))


def without_bodies(lines):
    """Returns declarations only: removes function bodies of several lines."""
    out, depth, initialising = [], None, False
    for line in lines:
        opened = line.count("{") - line.count("}")
        if initialising or re.match(r"\s+: \w", line):  # initialisers end with the body of the constructor
            if not initialising and out:
                out[-1] += ";"
            initialising = not line.endswith(("{", "}"))
            depth = opened if opened > 0 else None
            continue
        if depth is not None:
            depth += opened
            if depth <= 0:
                depth = None
            continue
        if opened > 0 and line.endswith("{") and not re.match(r"\s*(class|struct|enum|namespace|template)\b", line):
            out.append(line[:-1].rstrip() + ";")
            depth = opened
        else:
            out.append(line)
    return out


def public_part(lines):
    """Removes private and protected members and everything that is marked as internal."""
    out, hidden, internal = [], False, False
    for line in lines:
        label = re.match(r"^ (public|private|protected):$", line)
        if label:
            hidden, internal = label.group(1) != "public", False
        elif line.strip().startswith("// Internal:"):
            internal = True
        elif internal and not line.strip():
            internal = False
        elif re.match(r"^  (friend|struct Impl;)", line):
            continue
        closes = line == "};"
        if closes or not (hidden or internal):
            out.append(line)
    text = "\n".join(without_bodies(out))
    return re.sub(r"\n+(\n \w+:)?\n};", "\n};", re.sub(r"\n{3,}", "\n\n", text))


def chunks(lines):
    """Returns top-level declarations with their comments, as lists of lines."""
    chunk, depth = [], 0
    for line in lines:
        if not line and depth == 0:
            if chunk:
                yield chunk
            chunk = []
            continue
        chunk.append(line)
        code = line.partition("//")[0]
        depth += code.count("{") - code.count("}")
    if chunk:
        yield chunk


def is_shown(chunk):
    code = [line for line in chunk if not line.startswith("//")]
    forward = all(re.match(r"(class|struct) \w+;", line) for line in code)
    return bool(code) and not forward and not code[0].startswith("namespace detail")


def page(name, header):
    lines = header.read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if not line.startswith("//"))
    out = [f"## `convoy/{name}`", "", prose(lines[:start]).lstrip("\n"), ""]
    if "namespace convoy {" in lines:
        first = lines.index("namespace convoy {")
        last = len(lines) - 1 - lines[::-1].index("}  // namespace convoy")
        shown = [public_part(chunk) for chunk in chunks(lines[first + 1:last]) if is_shown(chunk)]
        if shown:
            out += ["```cpp", "\n\n".join(shown), "```", ""]
    return "\n".join(out)


def main():
    headers = {path.name: path for path in (TOP / "include" / "convoy").glob("*.h")}
    headers["core/communicator.h"] = TOP / "core" / "communicator.h"
    unknown = sorted(headers.keys() - set(ORDER))
    if unknown:
        sys.exit(f"cmake/api_reference.py: add {', '.join(unknown)} to ORDER")
    print(INTRODUCTION + "\n" + "\n".join(page(name, headers[name]) for name in ORDER if name in headers).rstrip())


main()
