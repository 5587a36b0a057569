# A limit of a control group of version 2 is the machine.
set -e
echo +memory > /sys/fs/cgroup/cgroup.subtree_control
mkdir /sys/fs/cgroup/limited
echo 256M > /sys/fs/cgroup/limited/memory.max
sh -c 'echo $$ > /sys/fs/cgroup/limited/cgroup.procs &&
    exec tidepool node start --pfs /pfs --memory 50% --mount /mnt/tide'
tidepool status --json | grep -q '"capacity_bytes": *134217728'
# Twice the capacity goes through it, and nobody is killed for it.
for number in 1 2 3 4 5 6 7 8; do
    dd if=/dev/zero of=/mnt/tide/$number bs=1M count=32 2>/dev/null
    cat /mnt/tide/$number > /dev/null
done
grep -q '^oom_kill 0' /sys/fs/cgroup/limited/memory.events
tidepool node stop
if sh -c 'echo $$ > /sys/fs/cgroup/limited/cgroup.procs &&
    exec tidepool node start --pfs /pfs --memory 1GiB' 2> /tmp/refused; then
    echo "more than the limit was not refused"; exit 1
fi
grep -q memory.max /tmp/refused
