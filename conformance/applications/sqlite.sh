# SQLite with a write-ahead log, which is a shared mapping, and with mapped reads.
set -e
python3 - <<'P'
import sqlite3
for journal in ["wal", "delete", "truncate", "persist"]:
    base = sqlite3.connect(f"{journal}.db", isolation_level=None)
    assert base.execute(f"pragma journal_mode={journal}").fetchone()[0] == journal
    base.execute("pragma mmap_size=67108864")
    base.execute("create table t(a integer primary key, b text)")
    for batch in range(20):
        base.execute("begin")
        base.executemany("insert into t(b) values (?)", ((str(x) * 20,) for x in range(500)))
        base.execute("commit")
        assert base.execute("select count(*) from t").fetchone()[0] == (batch + 1) * 500
    base.execute("delete from t where a % 3 = 0")
    base.execute("vacuum")
    base.close()
    base = sqlite3.connect(f"{journal}.db")
    assert base.execute("pragma integrity_check").fetchone()[0] == "ok"
    assert base.execute("select count(*) from t").fetchone()[0] == 6667
P
