# pyarrow: tables in files that are mapped and closed.
set -e
[ -n "$PYTHON_PACKAGES" ] || { echo "no pyarrow"; exit 77; }
PYTHONPATH="$PYTHON_PACKAGES" python3 - <<'P'
import gc, time
import pyarrow as pa, pyarrow.feather as feather
count = 1_000_000
table = pa.table({"a": pa.array(range(count)), "b": pa.array([x * 0.5 for x in range(count)])})
feather.write_feather(table, "table.feather", compression="uncompressed")
time.sleep(2.2)
for round in range(8):
    open("table.feather", "rb").read()
    mapped = feather.read_table("table.feather", memory_map=True)
    time.sleep(1)
    assert mapped.equals(table), f"round {round}: the table is another one"
    del mapped
    gc.collect()
P
