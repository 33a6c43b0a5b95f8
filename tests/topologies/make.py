#!/usr/bin/env python3
"""Writes the topologies in this folder: machines that the tests do not have, in the form of `lstopo --of xml`. They are
invented, with the shape of real ones and fewer cores, so that people can read a file. tests/launch/topology_test.cpp
describes each. Edit this script and run it; do not edit the files."""
import pathlib

HERE = pathlib.Path(__file__).resolve().parent
GIB = 2**30


def mask(bits):
    """Returns a mask as hwloc writes sets: words of 32 bits, the highest first; the first word of an empty set stands
    for all."""
    value = sum(1 << bit for bit in set(bits))
    words = []
    while value:
        words.append(value & 0xFFFFFFFF)
        value >>= 32
    return ",".join(f"0x{word:08x}" for word in reversed(words or [0]))


class Machine:
    def __init__(self, name, host):
        self.path, self.host = HERE / f"{name}.xml", host
        self.index = 0
        self.units, self.nodes = [], []

    def object(self, type_name, units=None, nodes=None, inside=(), **attributes):
        self.index += 1
        sets = {}
        if units is not None:
            sets = {"cpuset": mask(units), "complete_cpuset": mask(units), "nodeset": mask(nodes),
                    "complete_nodeset": mask(nodes)}
        written = {"type": type_name, **{k: v for k, v in attributes.items() if k == "os_index"}, **sets,
                "gp_index": str(self.index), **{k: v for k, v in attributes.items() if k != "os_index"}}
        text = " ".join(f'{key}="{value}"' for key, value in written.items())
        lines = [line for part in inside for line in part]
        if not lines:
            return [f"<object {text}/>"]
        return [f"<object {text}>", *("  " + line for line in lines), "</object>"]

    def core(self, index, units, node):
        self.units += units
        threads = [self.object("PU", [unit], [node], os_index=str(unit)) for unit in units]
        return self.object("Core", units, [node], threads, os_index=str(index))

    def numa(self, index, units, memory):
        self.nodes.append(index)
        return self.object("NUMANode", units, [index], os_index=str(index), local_memory=str(memory))

    def gpu(self, bus, uuid, memory, kind="0302", vendor="10de:2330"):
        """Returns a PCI device with its properties from NVML and CUDA."""
        inside = []
        if uuid:
            inside = [self.object("OSDev", None, None, [[f'<info name="NVIDIAUUID" value="{uuid}"/>']], name="nvml",
                                  subtype="NVML", osdev_type="1"),
                      self.object("OSDev", None, None,
                                  [[f'<info name="CUDAGlobalMemorySize" value="{memory // 1024}"/>']], name="cuda",
                                  subtype="CUDA", osdev_type="5")]
        return self.object("PCIDev", None, None, inside, pci_busid=f"0000:{bus:02x}:00.0",
                           pci_type=f"{kind} [{vendor}] [0000:0000] a1", pci_link_speed="0.000000")

    def write(self, inside, allowed=None):
        self.index += 1
        units, nodes = mask(self.units), mask(self.nodes)
        may = mask(allowed) if allowed is not None else units
        head = (f'<object type="Machine" os_index="0" cpuset="{units}" complete_cpuset="{units}" '
                f'allowed_cpuset="{may}" '
                f'nodeset="{nodes}" complete_nodeset="{nodes}" allowed_nodeset="{nodes}" gp_index="{self.index}">')
        body = [f'  <info name="HostName" value="{self.host}"/>', *("  " + line for part in inside for line in part)]
        self.path.write_text("\n".join(['<?xml version="1.0" encoding="UTF-8"?>',
                                        '<!DOCTYPE topology SYSTEM "hwloc2.dtd">', '<topology version="2.0">',
                                        *("  " + line for line in [head, *body, "</object>"]), "</topology>", ""]))


def package(machine, index, first_core, cores, threads, all_cores, devices=(), memory=64 * GIB, nodes=1, first_node=0):
    """Returns a socket. As in Linux, second hardware threads have numbers after all first ones. devices: (node, gpu)"""
    units_of = {core: [core + t * all_cores for t in range(threads)] for core in range(first_core, first_core + cores)}
    all_units = [unit for units in units_of.values() for unit in units]
    all_nodes = list(range(first_node, first_node + nodes))
    parts = []
    for node in all_nodes:
        own = sorted(units_of)[(node - first_node) * cores // nodes:(node - first_node + 1) * cores // nodes]
        units = [unit for core in own for unit in units_of[core]]
        members = [machine.numa(node, units, memory)]
        members += [machine.core(core, units_of[core], node) for core in own]
        members += [gpu for at, gpu in devices if at == node]
        # Several nodes in a socket are groups of it.
        parts += members if nodes == 1 else [machine.object("Group", units, [node], members, kind="10", subkind="0")]
    return machine.object("Package", all_units, all_nodes, parts, os_index=str(index))


def uuid(number):
    return f"GPU-{number:08x}-0000-4000-8000-{number:012x}"


def dgx():
    machine = Machine("dgx", "dgx")
    buses = [0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF]
    sockets = []
    for socket in range(2):
        gpus = [(socket, machine.gpu(buses[4 * socket + i], uuid(0xD0 + 4 * socket + i), 80 * GIB)) for i in range(4)]
        sockets.append(package(machine, socket, 16 * socket, 16, 2, 32, gpus, 1024 * GIB, 1, socket))
    machine.write(sockets)


def numa4():
    machine = Machine("numa4", "epyc")
    # As on some boards, the first GPU by address is attached to the last node.
    gpus = {1: [(3, machine.gpu(0x21, uuid(0xA0), 24 * GIB))], 0: [(1, machine.gpu(0x81, uuid(0xA1), 24 * GIB))]}
    machine.write([package(machine, socket, 8 * socket, 8, 1, 16, gpus[socket], 32 * GIB, 2, 2 * socket)
                   for socket in range(2)])


def hyperthreads():
    machine = Machine("hyperthreads", "workstation")
    machine.write([package(machine, 0, 0, 4, 2, 4)])


def grace():
    machine = Machine("grace", "grace")
    sockets = []
    for socket in range(2):
        gpu = machine.gpu(1 + 8 * socket, uuid(0x60 + socket), 96 * GIB, vendor="10de:2342")
        sockets.append(package(machine, socket, 8 * socket, 8, 1, 16, [(socket, gpu)], 240 * GIB, 1, socket))
    # The GPUs' memory is a separate node without cores.
    memory = []
    for node in (2, 10):
        machine.nodes.append(node)
        memory.append(machine.object("NUMANode", [], [node], os_index=str(node), local_memory=str(96 * GIB)))
    machine.write([*memory, *sockets])


def laptop():
    machine = Machine("laptop", "laptop")
    fast = [machine.core(core, [2 * core, 2 * core + 1], 0) for core in range(2)]
    slow = [machine.core(4 + core, [4 + core], 0) for core in range(4)]
    units = list(range(8))
    screen = machine.gpu(0, None, 0, "0300", "8086:9a49")
    node = machine.numa(0, units, 16 * GIB)
    machine.write([machine.object("Package", units, [0], [node, *fast, *slow, screen], os_index="0")])


def container():
    machine = Machine("container", "container")
    machine.write([package(machine, 0, 0, 8, 1, 8)], allowed=[2, 3, 6])


for make in (dgx, numa4, hyperthreads, grace, laptop, container):
    make()
