# Memory control under a limit of a control group of version 2: a job gets its memory, and nobody
# is killed.
set -e
echo +memory > /sys/fs/cgroup/cgroup.subtree_control
mkdir /sys/fs/cgroup/shared
echo 384M > /sys/fs/cgroup/shared/memory.max
echo $$ > /sys/fs/cgroup/shared/cgroup.procs
tidepool node start --pfs /pfs --memory 256MiB --memory-min 16MiB --mount /mnt/tide
for number in 1 2 3 4 5 6 7; do
    dd if=/dev/zero of=/mnt/tide/$number bs=1M count=32 2>/dev/null
done
sleep 2.1
for number in 1 2 3 4 5 6 7; do cat /mnt/tide/$number > /dev/null; done
for waited in $(seq 60); do
    tidepool control status --json | grep -q '"lease": *"governed"' && break
    sleep 1
done
tidepool control status --json | grep -q '"lease": *"governed"'
# Step by step, as a job grows.
for piece in $(seq 48); do
    dd if=/dev/zero of=/dev/shm/$piece bs=1M count=4 2>/dev/null
    sleep 0.2
done
[ "$(cat /dev/shm/* | wc -c)" = 201326592 ]
grep '^oom_kill ' /sys/fs/cgroup/shared/memory.events
grep -q '^oom_kill 0' /sys/fs/cgroup/shared/memory.events
tidepool node stop
