"""Reads event files of TensorBoard without its library, and names their tags as convoy does."""
import math
import struct

_TABLE = []
for _byte in range(256):
    _crc = _byte
    for _ in range(8):
        _crc = (_crc >> 1) ^ (0x82F63B78 if _crc & 1 else 0)
    _TABLE.append(_crc)


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def records(path):
    """The data of each TFRecord; checks lengths and both checksums."""
    whole = path.read_bytes()
    at = 0
    while at < len(whole):
        length = whole[at:at + 8]
        assert struct.unpack("<I", whole[at + 8:at + 12])[0] == masked(length), f"{path}: checksum of a length"
        end = at + 12 + struct.unpack("<Q", length)[0]
        data = whole[at + 12:end]
        assert struct.unpack("<I", whole[end:end + 4])[0] == masked(data), f"{path}: checksum of a record"
        yield data
        at = end + 4
    assert at == len(whole), f"{path}: the last record is incomplete"


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def fields(data):
    """Yields (number, value) of a protocol buffer: integers, doubles, floats, or bytes."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = varint(data, at)
        elif wire == 1:
            (value,), at = struct.unpack("<d", data[at:at + 8]), at + 8
        elif wire == 5:
            (value,), at = struct.unpack("<f", data[at:at + 4]), at + 4
        else:
            assert wire == 2, f"wire type {wire}"
            length, at = varint(data, at)
            value, at = data[at:at + length], at + length
        yield number, value


def events(folder):
    """All events of a folder in the order of the files' names: {step, version, session, scalars, texts, histograms}."""
    found = []
    for path in sorted(folder.glob("events.out.tfevents.*")):
        for data in records(path):
            event = {"step": 0, "version": "", "session": None, "scalars": {}, "texts": {}, "histograms": {}}
            for number, value in fields(data):
                if number == 2:
                    event["step"] = value
                elif number == 3:
                    event["version"] = value.decode()
                elif number == 7:
                    event["session"] = dict(fields(value))
                elif number == 5:
                    for _, one in fields(value):
                        parts = dict(fields(one))
                        tag = parts[1].decode()
                        if 2 in parts:
                            event["scalars"][tag] = parts[2]
                        elif 5 in parts:
                            event["histograms"][tag] = dict(fields(parts[5]))
                        else:
                            event["texts"][tag] = dict(fields(parts[8]))[8].decode()
            found.append(event)
    return found


def number(value):
    return {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}.get(value, value)


def expected_scalars(records_of_run):
    """{(tag, step): value} of every number of metrics.jsonl."""
    wanted = {}
    for record in records_of_run:
        kind, step = record["kind"], record["step"]
        for key, value in record.items():
            if key == "metrics":
                wanted.update({(f"{kind}/{name}", step): number(one) for name, one in value.items()})
            elif key == "members":
                wanted.update({(f"{kind}/{name}/member{member}", step): number(one)
                               for name, list_of in value.items() for member, one in enumerate(list_of)})
            elif key not in ("kind", "step", "lower_is_better"):  # names
                wanted[(f"{kind}.progress/{key}", step)] = number(value)
    return wanted


def same(value, wanted):
    """Equal as 32-bit floats."""
    single = struct.unpack("<f", struct.pack("<f", wanted))[0]
    return value == single or (math.isnan(value) and math.isnan(single))
