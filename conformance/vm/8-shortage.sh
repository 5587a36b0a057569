# Bytes that are in memory alone, under a job that takes 64 MiB each 100 ms in the same control group of
# version 2: none is lost, and nobody of ours is killed.
. common
echo +memory > /sys/fs/cgroup/cgroup.subtree_control
mkdir /sys/fs/cgroup/short
echo 384M > /sys/fs/cgroup/short/memory.max
within short tidepool node start --pfs /pfs --memory 256MiB --memory-min 0 --write-mode memory \
    --mount /mnt/tide
governed
node=$(tidepool status --json | number process_id)
put 1 6 32768
only=$(tidepool status --json | number memory_only_bytes)
# A controller that saw the memory run short before has had some of them written down.
[ "$only" -gt 0 ] || { echo "nothing is in memory alone"; exit 1; }
within short job take 64 100 5 1000 || echo "the job: exit $?"
lives "$node"
governed
right 1 3 32768 /mnt/tide
echo "vm: shortage: $(sed -n 's/^oom_kill //p' /sys/fs/cgroup/short/memory.events) killed in the" \
    "group, $(tidepool status --json | number memory_only_bytes) of $only bytes left in memory alone"
tidepool node stop
right 1 6 32768 /pfs
