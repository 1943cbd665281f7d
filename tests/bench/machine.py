"""The processor, its memory bandwidth, and the memory of processes, for measurements."""

import os
import platform
import subprocess
import sys
import time
from pathlib import Path


def processor():
    """Returns the name of the processor."""
    return cpu_fields().get("model name", platform.machine())


def instruction_sets():
    """Returns the names of the processor's instruction sets, as Linux prints them."""
    fields = cpu_fields()
    return set((fields.get("flags") or fields.get("Features") or "").split())


def cpu_fields():
    lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}


def threads():
    """Returns the number of processors that this process may use."""
    return len(os.sched_getaffinity(0))


def busy_share(seconds=1):
    """Returns the share of all processors' time that programs use."""
    before = cpu_times()
    time.sleep(seconds)
    total, idle = (after - start for after, start in zip(cpu_times(), before))
    return 1 - idle / total


def cpu_times():
    """Returns the time of all processors, in total and idle."""
    values = [int(value) for value in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return sum(values), values[3] + values[4]


def memory(process):
    """Returns the anonymous memory of a process and its descendants, and all their resident memory, in bytes."""
    children = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(entry.parent.name))
    own, resident, left = 0, 0, [process]
    while left:
        at = left.pop()
        left += children.get(at, [])
        try:
            status = dict(line.split(":", 1) for line in Path(f"/proc/{at}/status").read_text().splitlines())
        except OSError:
            continue
        own += kibibytes(status, "RssAnon")
        resident += kibibytes(status, "VmRSS")
    return own, resident


def kibibytes(status, key):
    return int(status.get(key, "0 kB").split()[0]) * 1024


def read_once(file):
    """Returns the seconds to read a file from the page cache."""
    begin = time.perf_counter()
    with open(file, "rb", buffering=0) as opened:
        buffer = bytearray(1 << 22)
        while opened.readinto(buffer):
            pass
    return time.perf_counter() - begin


def bandwidth(count):
    """Returns the total memory read rate of several processes in bytes per second. Each reads its own GiB."""
    code = ("import time,sys\nimport numpy as np\na=np.ones(1<<27)\nsys.stdin.readline()\nb=time.perf_counter()\n"
            "for _ in range(3): a.max()\nprint(3*a.nbytes/(time.perf_counter()-b))")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    readers = [subprocess.Popen([sys.executable, "-c", code], **pipes, text=True) for _ in range(count)]
    time.sleep(2)
    for reader in readers:
        reader.stdin.write("go\n")
        reader.stdin.flush()
    return sum(float(reader.communicate()[0]) for reader in readers)
