# Short memory with swap on a volume and compressed in memory: the store gives way, it is said that
# pages are swapped, and every byte is right.
. common
dd if=/dev/zero of=/pfs/swap bs=1M count=128 2> /dev/null
chmod 600 /pfs/swap
mkswap /pfs/swap > /dev/null && swapon /pfs/swap
if [ -e /sys/block/zram0/disksize ]; then
    echo 128M > /sys/block/zram0/disksize
    mkswap /dev/zram0 > /dev/null && swapon /dev/zram0
else
    echo "this kernel has no zram"; exit 1
fi
mkdir /pfs/data
tidepool node start --pfs /pfs/data --memory 640MiB --memory-min 0 --write-mode memory \
    --mount /mnt/tide
governed
node=$(tidepool status --json | number process_id)
put 1 8 32768
out=$(sed -n 's/^pswpout //p' /proc/vmstat)
before=$(killed)
# More than the machine has without swap; the alarm stands for ten seconds.
total=$(sed -n 's/^MemAvailable: *\([0-9]*\) kB/\1/p' /proc/meminfo)
job take 64 100 $(((total >> 16) + 7)) 3000
tidepool control status > /tmp/said || true
if [ "$(sed -n 's/^pswpout //p' /proc/vmstat)" -gt $((out + 10000)) ]; then
    grep -q swap-out /tmp/said || { cat /tmp/said; echo "swapped out, and it is not said"; exit 1; }
fi
echo "vm: swap: $(($(sed -n 's/^pswpout //p' /proc/vmstat) - out)) pages swapped out," \
    "$(($(killed) - before)) killed"
[ "$(killed)" = "$before" ]
lives "$node"
right 1 3 32768 /mnt/tide
tidepool node stop
right 1 8 32768 /pfs/data
swapoff /dev/zram0
swapoff /pfs/swap
