# numpy, pandas, h5py, zarr, DuckDB and LMDB: maps of all kinds, each checked by reading it again.
set -e
[ -n "$PYTHON_PACKAGES" ] || { echo "no packages"; exit 77; }
PYTHONPATH="$PYTHON_PACKAGES" python3 - <<'P'
import gc, time
import duckdb, h5py, lmdb, numpy as np, pandas as pd, zarr
wanted = np.arange(2_000_000, dtype="f8")
np.save("a.npy", wanted)
h5py.File("a.h5", "w").create_dataset("a", data=wanted, chunks=(100_000,)).file.close()
zarr.save("a.zarr", wanted)
pd.DataFrame({"a": wanted}).to_parquet("a.parquet")
time.sleep(2.2)
for round in range(6):
    mapped = np.load("a.npy", mmap_mode="r")
    time.sleep(0.7)
    assert (mapped == wanted).all(), "numpy"
    with h5py.File("a.h5") as file:
        assert (file["a"][:] == wanted).all(), "h5py"
    assert (zarr.load("a.zarr")[:] == wanted).all(), "zarr"
    assert (pd.read_parquet("a.parquet")["a"].to_numpy() == wanted).all(), "parquet"
    total = duckdb.sql("select sum(a) from 'a.parquet'").fetchone()[0]
    assert total == wanted.sum(), "duckdb"
    written = np.memmap("w.dat", dtype="f8", mode="w+", shape=wanted.shape)
    written[:] = wanted
    written.flush()
    del written, mapped
    gc.collect()
    assert (np.fromfile("w.dat") == wanted).all(), "memmap"
    with lmdb.open("base", map_size=64 << 20, writemap=bool(round % 2)) as base:
        with base.begin(write=True) as change:
            for number in range(3000):
                change.put(b"%d-%d" % (round, number), b"%d" % number * 20)
        with base.begin() as look:
            assert look.stat()["entries"] == (round + 1) * 3000, "lmdb"
            assert look.get(b"%d-2999" % round) == b"2999" * 20, "lmdb"
P
