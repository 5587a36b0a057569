# A job takes more than the whole machine has: the kernel kills the job, never the node, and no byte that
# is in memory alone is lost.
. common
tidepool node start --pfs /pfs --memory 640MiB --memory-min 0 --write-mode memory --mount /mnt/tide
governed
node=$(tidepool status --json | number process_id)
put 1 8 32768
before=$(killed)
status=0
job take 64 100 40 1000 || status=$?
[ $status = 137 ] || { echo "the job ended with $status, and not killed"; exit 1; }
[ $(($(killed) - before)) = 1 ] || { echo "more than the job was killed"; exit 1; }
lives "$node"
governed
right 1 3 32768 /mnt/tide
tidepool node stop
right 1 8 32768 /pfs
