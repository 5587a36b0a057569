# A leak of 2 MB/s over three minutes, beside a full store and a reader: it is followed, nobody is killed, and the
# store does not turn back and forth.
. common
tidepool node start --pfs /pfs --memory 800MiB --memory-min 16MiB --mount /mnt/tide
governed
node=$(tidepool status --json | number process_id)
put 1 20 32768
sleep 2.1
cat /mnt/tide/[0-9]* > /dev/null
held=$(tidepool status --json | number resident_bytes)
before=$(killed)
free=$(sed -n 's/^MemAvailable: *\([0-9]*\) kB/\1/p' /proc/meminfo)
# From 40 MiB before the store has to give, until half of it is gone.
steps=$((40 + (held >> 21)))
job take $(((free >> 10) - 120)) 100 1 $((steps * 500 + 20000)) &
sleep 15
filled=$(tidepool metrics | sed -n 's/^tidepool_fills_total //p')
job take 1 500 $steps 1000
echo "vm: leak: $held bytes held, $(tidepool status --json | number resident_bytes) after" \
    "$((steps / 2)) s, $(($(killed) - before)) killed," \
    "$(($(tidepool metrics | sed -n 's/^tidepool_fills_total //p') - filled)) blocks filled"
wait
[ "$(killed)" = "$before" ]
lives "$node"
right 1 20 32768 /mnt/tide
tidepool node stop
