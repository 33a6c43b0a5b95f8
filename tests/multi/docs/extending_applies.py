"""The changes of docs/extending.md apply to the tree; multi/extending also builds and runs them."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import runs
from extending_page import changed_copy

with runs.workspace() as work:
    changed_copy(work / "tree")
