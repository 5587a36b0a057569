# The law of Tidepool, that of the DynIMS paper with its own interval, and a fixed size on the same demand,
# on a machine whose memory really ends: how long jobs wait for memory, what the store takes again, whom the
# kernel kills. It tells, and demands only that no byte is wrong and no node dies.
. common
free() { sed -n 's/^MemAvailable: *\([0-9]*\) kB/\1/p' /proc/meminfo; }
count() { sed -n "s/^tidepool_fills$1_total //p" /tmp/metrics; }
# MiB that came into the store, in blocks of 4 MiB.
filled() {
    tidepool metrics > /tmp/metrics
    echo $((($(count "") - $(count _not_admitted) - $(count _discarded)) * 4))
}
said() { echo "vm: traces, $1, $2: $3; refilled $4 MiB, killed $5"; }

# Runs `job` with the words after the first two, and tells what came of it.
trace() {
    policy=$1 name=$2
    shift 2
    before=$(killed) had=$(filled)
    sh -c 'while :; do cat /mnt/tide/[0-9]* > /dev/null; sleep 0.1; done' &
    reader=$!
    job "$@" > /tmp/times 2>&1 || true
    kill $reader && wait $reader 2> /dev/null || true
    times=$(sed -n 's/^job: //p' /tmp/times)
    said "$policy" "$name" "${times:-it was killed}" $(($(filled) - had)) \
        $(($(killed) - before))
    lives "$node"
    sleep 3
}

for policy in tidepool dynims static; do
    rm -rf /pfs/data && mkdir /pfs/data
    tidepool node start --pfs /pfs/data --memory 800MiB --memory-min 0 --mount /mnt/tide \
        --control-policy "$policy"
    governed
    node=$(tidepool status --json | number process_id)
    put 1 20 32768
    sleep 2.1
    cat /mnt/tide/[0-9]* > /dev/null
    # 200 MiB more than is free: each time the store has to give as much.
    size=$((($(free) >> 10) + 200))
    trace "$policy" "bursts each 300 ms" bursts $size 300 20
    trace "$policy" "bursts each 500 ms" bursts $size 500 20
    trace "$policy" "64 MiB each 100 ms" take 64 100 $((size >> 6)) 2000
    trace "$policy" "1 MiB each 100 ms after all that is free" take $size 100 1 20000
    right 1 20 32768 /mnt/tide
    tidepool node stop
done
