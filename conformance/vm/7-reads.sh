# What reads of resident files take beside the machine's tmpfs. It tells, and demands nothing.
set -e
tidepool node start --pfs /pfs --memory 96MiB --mount /mnt/tide
dd if=/dev/urandom of=/dev/shm/file bs=1M count=32 2>/dev/null
cp /dev/shm/file /mnt/tide/file
sleep 2.1
cat /mnt/tide/file > /dev/null
reads /mnt/tide/file /dev/shm/file
rm /dev/shm/file
tidepool node stop
