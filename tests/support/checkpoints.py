"""Tensors of checkpoints, for script tests; standard library only."""
import array
import json
import struct
import subprocess

import runs

TOLERANCE = 1e-12


def parts(data):
    """Returns {name: (dtype, bytes)} of a safetensors file: a length, a JSON header, and the tensors."""
    (length,) = struct.unpack("<Q", data[:8])
    body = data[8 + length:]
    return {name: (entry["dtype"], body[slice(*entry["data_offsets"])])
            for name, entry in json.loads(data[8:8 + length]).items() if name != "__metadata__"}


def tensors(output):
    """Returns the tensors of the newest checkpoint by key: numbers for float64, bytes for other types."""
    return numbers(runs.newest_checkpoint(output))


def numbers(folder):
    found = {}
    for file in folder.glob("*.safetensors"):
        for key, (dtype, part) in parts(file.read_bytes()).items():
            found[key] = array.array("d", part) if dtype == "F64" else part
    return found


def exported(output):
    """Returns only the whole weights, in the form of `tensors`: ranks of two runs may hold different pieces of them."""
    to = output.with_name(output.name + "-exported")
    runs.check(subprocess.run([runs.CONVOY, "export", output, "--to", to], stdout=subprocess.DEVNULL).returncode == 0,
               f"{output}: no export")
    return numbers(to)


def difference(output, expected, tolerance=TOLERANCE):
    """Returns how the newest checkpoints of two runs differ: "" if equal, float64 to `tolerance`."""
    return difference_of(tensors(output), tensors(expected), tolerance)


def difference_of_exports(output, expected, tolerance=TOLERANCE):
    return difference_of(exported(output), exported(expected), tolerance)


def difference_of(mine, other, tolerance):
    if mine.keys() != other.keys():
        return f"other tensors: {sorted(mine.keys() ^ other.keys())}"
    for key, values in mine.items():
        if isinstance(values, bytes):
            if values != other[key]:
                return f"{key} differs"
            continue
        worst = max((abs(a - b) / max(1.0, abs(b)) for a, b in zip(values, other[key])), default=0)
        if len(values) != len(other[key]) or not worst <= tolerance:
            return f"{key} differs by {worst}"
    return ""
