# PostgreSQL: the server and its backends killed under load, recovery, and its own checks of all data.
set -e
bin=$(pg_config --bindir 2>/dev/null || ls -d /usr/lib/postgresql/*/bin 2>/dev/null | tail -n 1) || true
for program in initdb pgbench pg_amcheck pg_checksums; do
    [ -x "$bin/$program" ] || { echo "no $program"; exit 77; }
done
# The server does not run as root. Its socket is on the mount, too.
server() { if [ "$(id -u)" = 0 ]; then setpriv --reuid=nobody --clear-groups "$@"; else "$@"; fi; }
user=postgres
[ "$(id -u)" != 0 ] || chown nobody .
export PGHOST="$PWD" PGUSER=$user PGDATA="$PWD/data" PGDATABASE=postgres LC_ALL=C
killed() { kill -9 "$(head -n 1 data/postmaster.pid)"; }
trap 'killed 2> /dev/null || true' EXIT
# A server that was killed may have processes yet that hold what the next one wants.
start() {
    for _ in $(seq 100); do
        server "$bin/pg_ctl" -s -w -t 60 -l log -o "-c listen_addresses= -k $PWD" start && return
        sleep 0.1
    done
    tail -n 20 log
    return 1
} > start.said 2>&1
ask() { "$bin/psql" -XAtqc "$1"; }

server "$bin/initdb" --data-checksums --auth=trust --username=$user > /dev/null
printf '%s\n' 'shared_buffers = 8MB' 'checkpoint_timeout = 30s' 'max_wal_size = 48MB' \
    'wal_recycle = off' >> data/postgresql.conf
start || { cat start.said; exit 1; }
"$bin/pgbench" -iqs 3 --foreign-keys 2> /dev/null
ask 'create table told(number int primary key, filled text)'
: > told
for round in 1 2 3; do
    timeout 60 "$bin/pgbench" -nc 4 -T 20 > /dev/null 2>&1 &
    bench=$!
    # Only what the server confirmed is written down.
    ( number=${round}0000
      while number=$((number + 1)) &&
          ask "insert into told values ($number, repeat('$number ', 2000))"
      do echo $number >> told; done 2> /dev/null ) &
    teller=$!
    sleep 4
    if [ $round = 2 ]; then
        # One backend: the server ends all others and recovers by itself.
        kill -9 "$(ask "select pid from pg_stat_activity where application_name='pgbench' limit 1")"
    else
        killed
    fi
    wait $bench || true
    wait $teller || true
    [ $round = 2 ] || start || { cat start.said; exit 1; }
    for _ in $(seq 300); do ask 'select 1' > /dev/null 2>&1 && break; sleep 0.1; done
    [ "$(ask 'select (select sum(abalance) from pgbench_accounts) = all (array[
        (select sum(bbalance) from pgbench_branches), (select sum(tbalance) from pgbench_tellers),
        (select coalesce(sum(delta), 0) from pgbench_history)])')" = t ]
    ask 'select number from told order by number' > kept
    sort told | comm -23 - kept | (! grep .)
    ask "select number from told where filled <> repeat(number || ' ', 2000)" | (! grep .)
    "$bin/pg_amcheck" --install-missing --heapallindexed --parent-check --jobs=2 > checked 2>&1 || { cat checked; exit 1; }
done
[ "$(wc -l < told)" -gt 10 ]
# Newer ones name a key of their own in each.
dump() { "$bin/pg_dump" | grep -v 'restrict '; }
dump > dumped
server "$bin/pg_ctl" -s -w -m fast stop
server "$bin/pg_checksums" --check > /dev/null
start || { cat start.said; exit 1; }
dump | cmp - dumped
server "$bin/pg_ctl" -s -w -m fast stop
