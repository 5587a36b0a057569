# The limit of a control group of version 2 is lowered below what a node in it holds in memory alone: by
# `tidepool resize` first, and at once where there is swap. Nothing is lost, and nobody is killed.
. common
echo +memory > /sys/fs/cgroup/cgroup.subtree_control

# A group $1 of 320 MiB with a node in it that has 192 MiB in memory alone.
begin() {
    group=/sys/fs/cgroup/$1
    mkdir "$group" /pfs/data
    echo 320M > "$group/memory.max"
    within "$1" tidepool node start --pfs /pfs/data --memory 256MiB --memory-min 0 --write-mode memory \
        --mount /mnt/tide
    governed
    node=$(tidepool status --json | number process_id)
    put 1 6 32768
}

# Group $1 has its new limit: who was killed for it?
end() {
    sleep 1
    killed=$(sed -n 's/^oom_kill //p' "$group/memory.events")
    echo "vm: lowered: by $1: $(cat "$group/memory.current") bytes are charged, $killed killed"
    [ "$killed" = 0 ]
    lives "$node"
    right 1 6 32768 /mnt/tide
    tidepool node stop
    right 1 6 32768 /pfs/data
    rm -r /pfs/data
    rmdir "$group"
}

begin resized
# It ends when all is written down, and fails where that cannot be.
tidepool resize 64MiB
held=$(tidepool control status --json | number resident_bytes)
[ "$held" -le 67108864 ] || { echo "$held bytes are held"; exit 1; }
# The node needs buffers of its own.
echo 160M > "$group/memory.max"
end "tidepool resize"

fallocate -l 320M /pfs/swap
chmod 600 /pfs/swap
mkswap /pfs/swap > /dev/null && swapon /pfs/swap
begin swapped
echo 128M > "$group/memory.max"
end swap
swapoff /pfs/swap
