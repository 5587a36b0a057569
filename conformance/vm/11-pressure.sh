# What takes memory in other ways, in a control group of version 2: a flood of dirty pages, locked memory,
# and a job for which packed small files have to go. Nobody is killed, and every byte is right.
. common
echo +memory > /sys/fs/cgroup/cgroup.subtree_control
mkdir /sys/fs/cgroup/pressed /pfs/data
echo 448M > /sys/fs/cgroup/pressed/memory.max
within pressed tidepool node start --pfs /pfs/data --memory 256MiB --memory-min 16MiB \
    --mount /mnt/tide
governed
node=$(tidepool status --json | number process_id)
put 1 6 32768
mkdir /mnt/tide/small
put 1 60 16 small/
sleep 2.1
cat /mnt/tide/[0-9]* /mnt/tide/small/* > /dev/null
resident() { tidepool status --json | number resident_bytes; }
held=$(resident)
[ "$held" -gt 150000000 ] || { echo "only $held bytes are in the store"; exit 1; }
# The clock is set an hour ahead and back: nothing goes for it.
date -s "@$(($(date +%s) + 3600))" > /dev/null
sleep 1.5
[ "$(resident)" = "$held" ] || { echo "$(resident) of $held bytes are left after the clock was set"; exit 1; }
date -s "@$(($(date +%s) - 3600))" > /dev/null
# Dirty pages may fill what is free.
echo 90 > /proc/sys/vm/dirty_ratio
echo 80 > /proc/sys/vm/dirty_background_ratio
within pressed job file /pfs/flood 160 1
dirty=$(resident)
# A leak of 10 MB/s.
within pressed job take 1 100 30 0
# Steps that the headroom of so small a group covers: a twentieth of its limit.
within pressed job take 8 100 30 300 locked
locked=$(resident)
# The small files go as well.
within pressed job take 8 100 42 300
killed=$(sed -n 's/^oom_kill //p' /sys/fs/cgroup/pressed/memory.events)
echo "vm: pressure: $held bytes held, $dirty after dirty pages, $locked after locked memory," \
    "$(resident) at the end, $killed killed"
[ "$killed" = 0 ]
lives "$node"
governed
right 1 2 32768 /mnt/tide
right 1 60 16 /mnt/tide/small
tidepool node stop
