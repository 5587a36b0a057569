#!/usr/bin/env python3
"""Epochs over a data set by Python's readers: on the bare directory of the PFS, without and with
the kernel's page cache, and through the mount of a Tidepool node.

    python3 examples/python/epochs.py /lustre/project /mnt/tide

Makes files in a directory of its own below the first argument, reads all of them once an epoch by
each library that is installed, checks every sum, prints rates, and removes the files. Works also
without any library: the reader `plain` needs Python alone.

With --memory-limit the reading process is in a memory control group with this limit, as a job of
Slurm or a container is (root; control groups of version 1 or 2): the page cache of what it reads is
charged to that group, the store of the node is not.
"""

import argparse
import array
import importlib.util
import os
import random
import shutil
import statistics
import sys
import tempfile
import time

MIB = 1 << 20
UNITS = {"KiB": 1 << 10, "MiB": MIB, "GiB": 1 << 30}
# Bytes of one sample of a training loop, and of one read of the plain reader.
SAMPLE_BYTES = MIB


def size(text):
    for unit, factor in UNITS.items():
        if text.endswith(unit):
            return int(float(text[: -len(unit)]) * factor)
    return int(text)


# Readers: a suffix, how a file is made of numbers, and an epoch over files that returns their sum.


def write_raw(path, numbers):
    with open(path, "wb") as file:
        numbers.tofile(file)


def epoch_plain(paths, _order):
    total, buffer = 0, bytearray(SAMPLE_BYTES)
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            while count := file.readinto(buffer):
                # One number a page, so that this loop is about reading.
                total += sum(memoryview(buffer)[:count].cast("i")[::1024])
    return total


def write_numpy(path, numbers):
    import numpy

    numpy.save(path, numpy.frombuffer(numbers, dtype=numpy.int32))


def epoch_numpy(paths, _order):
    import numpy

    return sum(int(numpy.load(path, mmap_mode="r").sum(dtype=numpy.int64)) for path in paths)


def table(numbers):
    import numpy
    import pyarrow

    return pyarrow.table({"numbers": numpy.frombuffer(numbers, dtype=numpy.int32)})


def write_parquet(path, numbers):
    import pyarrow.parquet

    pyarrow.parquet.write_table(table(numbers), path, compression="none", use_dictionary=False)


def epoch_pandas(paths, _order):
    import pandas

    return sum(int(pandas.read_parquet(path)["numbers"].sum()) for path in paths)


def write_arrow(path, numbers):
    import pyarrow

    written = table(numbers)
    with pyarrow.OSFile(path, "wb") as sink, pyarrow.ipc.new_file(sink, written.schema) as writer:
        writer.write_table(written)


def epoch_pyarrow(paths, _order):
    import pyarrow
    import pyarrow.compute

    total = 0
    for path in paths:
        with pyarrow.memory_map(path) as source:
            read = pyarrow.ipc.open_file(source).read_all()
            total += pyarrow.compute.sum(read["numbers"]).as_py()
    return total


def epoch_torch(paths, order):
    """Samples in a new random order each epoch, by two workers, as training jobs read."""
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Samples(Dataset):
        def __init__(self):
            self.files = [(path, os.path.getsize(path) // SAMPLE_BYTES) for path in paths]

        def __len__(self):
            return sum(count for _, count in self.files)

        def __getitem__(self, index):
            path, count = self.files[index // self.files[0][1]]
            at = index % count * SAMPLE_BYTES
            with open(path, "rb", buffering=0) as file:
                file.seek(at)
                return torch.frombuffer(bytearray(file.read(SAMPLE_BYTES)), dtype=torch.int32)

    generator = torch.Generator().manual_seed(order)
    loader = DataLoader(Samples(), batch_size=8, shuffle=True, num_workers=2, generator=generator)
    return sum(int(batch.sum(dtype=torch.int64)) for batch in loader)


# By name: modules that it needs, suffix, writer, epoch, and whether it sums all numbers.
READERS = {
    "plain": ([], ".raw", write_raw, epoch_plain, False),
    "numpy": (["numpy"], ".npy", write_numpy, epoch_numpy, True),
    "pandas": (["pandas", "pyarrow"], ".parquet", write_parquet, epoch_pandas, True),
    "pyarrow": (["pyarrow", "numpy"], ".arrow", write_arrow, epoch_pyarrow, True),
    "torch": (["torch"], ".raw", write_raw, epoch_torch, True),
}


def make(directory, name, files, file_bytes):
    """Files with known numbers; their sum as the reader counts."""
    _, suffix, write, _, sums_all = READERS[name]
    pattern = random.Random(7)
    piece = array.array("i", (pattern.randrange(-1000, 1000) for _ in range(MIB // 4)))
    numbers = piece * (file_bytes // MIB)
    one = sum(piece if sums_all else piece[::1024]) * (file_bytes // MIB)
    names = [f"{number}{suffix}" for number in range(files)]
    for file in names:
        write(os.path.join(directory, file), numbers)
    for file in names:
        with open(os.path.join(directory, file), "rb") as made:
            os.fsync(made.fileno())
    return names, one * files


def forget(paths):
    for path in paths:
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def storage_bytes():
    """Bytes that this process had fetched from storage by the kernel; not known everywhere."""
    with open("/proc/self/io") as facts:
        return int(dict(line.split(": ") for line in facts)["read_bytes"])


def measure(name, places, expected, epochs):
    """Epochs at all places by turns, so that a busy machine is busy for all of them alike. For each
    place: rate of the first epoch, median of the later ones, and their share from storage."""
    read = READERS[name][3]
    total = sum(os.path.getsize(path) for path in places[0][1])
    results = {place: ([], []) for place, _, _ in places}
    forget(places[0][1])
    for number in range(epochs + 1):
        for place, paths, cold in places:
            if cold:
                forget(paths)
            before, begun = storage_bytes(), time.monotonic()
            found = read(paths, number)
            seconds = time.monotonic() - begun
            assert found == expected, f"{name} at {place}: {found} is not {expected}"
            rates, fetched = results[place]
            rates.append(total / seconds / 1e6)
            fetched.append((storage_bytes() - before) / total)
    for place, (rates, fetched) in results.items():
        yield place, rates[0], statistics.median(rates[1:]), statistics.median(fetched[1:])


class Group:
    """A memory control group that this process is in, with a limit."""

    def __init__(self, limit):
        root = "/sys/fs/cgroup/memory" if os.path.isdir("/sys/fs/cgroup/memory") else "/sys/fs/cgroup"
        version_1 = root.endswith("memory")
        self.path = os.path.join(root, f"epochs-{os.getpid()}")
        self.root = root
        os.mkdir(self.path)
        file = "memory.limit_in_bytes" if version_1 else "memory.max"
        self.put(os.path.join(self.path, file), limit)
        self.put(os.path.join(self.path, "cgroup.procs"), os.getpid())

    @staticmethod
    def put(path, value):
        with open(path, "w") as file:
            file.write(str(value))

    def end(self):
        self.put(os.path.join(self.root, "cgroup.procs"), os.getpid())
        os.rmdir(self.path)


def arguments():
    about = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    about.add_argument("directory", help="a directory of the PFS")
    about.add_argument("mount", nargs="?", help="the same directory through a mount")
    about.add_argument("--files", type=int, default=16)
    about.add_argument("--file-size", type=size, default=16 * MIB)
    about.add_argument("--epochs", type=int, default=4, help="after the first one")
    about.add_argument("--readers", default=",".join(READERS))
    about.add_argument("--memory-limit", type=size, help="of the reading process and its page cache")
    return about.parse_args()


def run(name, directory, options):
    names, expected = make(directory, name, options.files, options.file_size)
    local = [os.path.join(directory, file) for file in names]
    places = [("PFS, page cache dropped", local, True), ("PFS, page cache", local, False)]
    if options.mount:
        below = os.path.relpath(directory, options.directory)
        through = [os.path.join(options.mount, below, file) for file in names]
        places.append(("mount", through, False))
    for place, first, later, fetched in measure(name, places, expected, options.epochs):
        print(f"{name:<8}  {place:<24}  {first:8.0f}  {later:8.0f}  {fetched:8.0%}", flush=True)
    for path in local:
        os.remove(path)


def main():
    options = arguments()
    total = options.files * options.file_size // MIB
    print(f"{options.files} files of {options.file_size // MIB} MiB, {total} MiB in all; "
          f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    print(f"{'reader':<8}  {'from':<24}  {'first':>8}  {'later':>8}  {'fetched':>8}   (MB/s; share "
          "of the later epochs that this process fetched from storage)")
    directory = tempfile.mkdtemp(prefix="epochs-", dir=options.directory)
    group = Group(options.memory_limit) if options.memory_limit else None
    try:
        for name in options.readers.split(","):
            lacking = [it for it in READERS[name][0] if importlib.util.find_spec(it) is None]
            if lacking:
                print(f"{name:<8}  not installed: {', '.join(lacking)}")
                continue
            run(name, directory, options)
    finally:
        shutil.rmtree(directory)
        if group:
            group.end()


if __name__ == "__main__":
    sys.exit(main())
