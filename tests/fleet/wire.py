"""A network between namespaces that delays, loses, slows down and cuts.

The kernel's own netem does this too, where it is built in; this needs /dev/net/tun
alone. Each node has an interface `wire`, whose packets this process reads and hands
to their receiver later, or never. So both ends have the kernel's real TCP, with its
retransmissions and timers.

    wire.py NAMESPACE...      node N is 10.77.0.(N+1)

Commands come by standard input, a line each, and are answered by a line:

    delay MS         every packet takes so long, one way
    loss SHARE       this share of packets vanishes
    rate NODE MBIT   what NODE sends and gets passes at this rate; 0 for any
    cut NODE         nothing passes to NODE and from it
    join NODE        it does again
    count            packets that passed, were lost, were cut off, and bytes that passed
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import sys
import time

CLONE_NEWNET = 0x40000000
TUNSETIFF = 0x400454CA
IFF_TUN_NO_PI = 0x1001
# Fewer and larger packets, since each costs this process its time; and room for those
# of a burst, which a switch would have too.
LINK = "mtu 9000 txqueuelen 5000"
# Bytes that wait for a slow link at the most; what comes beyond is lost.
BUFFER = 256 * 1024


def tun(namespace: str, address: str) -> int:
    """The other end of an interface that is made in the namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    own = os.open("/proc/self/ns/net", os.O_RDONLY)
    inside = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    if libc.setns(inside, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), f"entering {namespace}")
    end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH22x", b"wire", IFF_TUN_NO_PI))
    for command in [f"addr add {address}/24 dev wire", f"link set wire {LINK} up"]:
        subprocess.run(["ip", *command.split()], check=True)
    if libc.setns(own, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "coming back")
    os.close(own)
    os.close(inside)
    return end


class Wire:
    """Packets on their way."""

    def __init__(self, ends: list[int]):
        self.ends = ends
        self.delay = 0.0
        self.loss = 0.0
        # Of each node: seconds that a byte takes, and until when its link is taken.
        self.pace = [0.0] * len(ends)
        self.taken = [0.0] * len(ends)
        self.cut: set[int] = set()
        self.chance = random.Random(1)
        self.queue: list[tuple[float, int, int, bytes]] = []
        self.number = 0
        self.passed = self.lost = self.cut_off = self.bytes = 0

    def send(self, source: int, packet: bytes, now: float) -> None:
        """Takes what a node sends."""
        # Version 4 alone: version 6 says no more here than that it is there.
        if packet[0] >> 4 != 4 or not 0 < packet[19] <= len(self.ends):
            return
        target = packet[19] - 1
        if source in self.cut or target in self.cut:
            self.cut_off += 1
            return
        if self.loss and self.chance.random() < self.loss:
            self.lost += 1
            return
        due = now
        for node in (source, target):
            if self.pace[node]:
                start = max(due, self.taken[node])
                if (start - due) / self.pace[node] > BUFFER:
                    self.lost += 1
                    return
                due = self.taken[node] = start + len(packet) * self.pace[node]
        self.number += 1
        heapq.heappush(self.queue, (due + self.delay, self.number, target, packet))

    def deliver(self, now: float) -> float | None:
        """Hands over what is due; seconds until the next packet is."""
        while self.queue and self.queue[0][0] <= now:
            _, _, target, packet = heapq.heappop(self.queue)
            if target in self.cut:
                self.cut_off += 1
                continue
            self.passed += 1
            self.bytes += len(packet)
            os.write(self.ends[target], packet)
        return self.queue[0][0] - now if self.queue else None

    def command(self, line: str) -> str:
        match line.split():
            case ["delay", ms]:
                self.delay = float(ms) / 1000
            case ["loss", share]:
                self.loss = float(share)
            case ["rate", node, mbit]:
                self.pace[int(node)] = 8e-6 / float(mbit) if float(mbit) else 0.0
            case ["cut", node]:
                self.cut.add(int(node))
            case ["join", node]:
                self.cut.discard(int(node))
            case ["count"]:
                return f"{self.passed} {self.lost} {self.cut_off} {self.bytes}"
            case _:
                return f"unknown: {line}"
        return "ok"


def run(wire: Wire) -> None:
    """Until standard input ends."""
    wait: float | None = None
    while True:
        ready, _, _ = select.select([0, *wire.ends], [], [], wait)
        if 0 in ready:
            line = sys.stdin.readline()
            if not line:
                return
            print(wire.command(line), flush=True)
        for source, end in enumerate(wire.ends):
            if end not in ready:
                continue
            try:
                while packet := os.read(end, 65536):
                    wire.send(source, packet, time.monotonic())
            except BlockingIOError:
                pass
        wait = wire.deliver(time.monotonic())


if __name__ == "__main__":
    try:
        # Before what computes, as a network would be.
        os.nice(-15)
    except OSError:
        pass
    nodes = enumerate(sys.argv[1:], 1)
    wire = Wire([tun(name, f"10.77.0.{number}") for number, name in nodes])
    print("ok", flush=True)
    run(wire)
