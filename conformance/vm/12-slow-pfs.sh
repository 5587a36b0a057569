# A PFS that takes 20 MB/s, beside a job that takes 64 MiB each 100 ms until the machine is full: what
# could not be written down in time is written down later, and the job is the one that pays.
. common
tidepool node start --pfs /pfs --memory 640MiB --memory-min 0 --write-mode memory --mount /mnt/tide \
    --fault write:rate=20MB/s
governed
node=$(tidepool status --json | number process_id)
put 1 6 32768
job take 64 100 40 1000 || echo "the job: exit $?"
lives "$node"
governed
right 1 6 32768 /mnt/tide
tidepool control status > /tmp/said || true
echo "vm: slow PFS: $(tidepool status --json | number memory_only_bytes) of 201326592 bytes left in" \
    "memory alone"
tidepool node stop
right 1 6 32768 /pfs
