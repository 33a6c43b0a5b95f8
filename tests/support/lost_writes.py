"""Loses what convoy had not flushed to the disk, as a host that loses its power does; with programs/lost_writes.cpp.

Lines of the journal, with tabs:
  create PATH               a new name, of a file or a folder
  rename FROM TO KEPT       KEPT: a link to the replaced file, or -
  wrote INODE               data since the last fsync of the file
  synced INODE BYTES        fsync of a file
  synced-folder PATH        fsync of a folder: its names are on the disk
"""
import os
import pathlib
import shutil

import runs

LIBRARY = runs.BUILD / "tests" / "liblost_writes.so"


def environment(folder, root):
    """Variables for processes whose calls below `root` are recorded in `folder`."""
    folder.mkdir(exist_ok=True)
    return {"LD_PRELOAD": str(LIBRARY), "CONVOY_LOST_WRITES": str(folder), "CONVOY_LOST_WRITES_OF": str(root)}


def moved(path, before, after):
    return after + path[len(before):] if path == before or path.startswith(before + "/") else path


class Journal:
    """Operations that are not on the disk yet, in their order."""

    def __init__(self, folder):
        self.names, self.sizes, self.dirty = [], {}, set()
        path = folder / "journal"
        for line in path.read_text().splitlines() if path.exists() else ():
            kind, *words = line.split("\t")
            getattr(self, kind.replace("-", "_"))(*words)

    def create(self, path):
        self.names.append(["create", path])

    def rename(self, before, after, kept):
        self.move(before, after)
        self.names.append(["rename", before, after, kept])

    def move(self, before, after):
        for name in self.names:
            name[1:3] = [moved(path, before, after) for path in name[1:3]]

    def wrote(self, inode):
        self.dirty.add(inode)

    def synced(self, inode, size):
        self.dirty.discard(inode)
        self.sizes[inode] = int(size)

    def synced_folder(self, path):
        self.names = [name for name in self.names if os.path.dirname(name[2 if name[0] == "rename" else 1]) != path]

    def lose(self, root, lost):
        """Undoes the operations for which `lost` returns true. Returns their descriptions."""
        done = []
        for file in [*root.rglob("*")]:
            if not file.is_file() or file.is_symlink():
                continue
            status = file.stat()
            inode = f"{status.st_dev}:{status.st_ino}"
            if inode in self.dirty and lost():
                os.truncate(file, min(status.st_size, self.sizes.get(inode, 0)))
                done.append(f"data of {file}")
        while self.names:
            kind, *paths = self.names.pop()
            if not lost():
                continue
            here = pathlib.Path(paths[1] if kind == "rename" else paths[0])
            if not os.path.lexists(here):
                continue  # removed since
            done.append(f"{kind} {here}")
            if kind == "rename":
                before, after, kept = paths
                os.rename(after, before)
                if kept != "-":
                    os.link(kept, after)
                self.move(after, before)
            elif here.is_dir():
                shutil.rmtree(here)
            else:
                here.unlink()
        return done


def lose(folder, root, lost):
    """Loses a part of what is not on the disk below `root`, and begins a new journal."""
    done = Journal(folder).lose(root, lost)
    for path in folder.iterdir():
        path.unlink()
    return done
