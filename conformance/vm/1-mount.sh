# Bytes through the mount, before and after the store was emptied and resized.
set -e
tidepool node start --pfs /pfs --memory 96MiB --mount /mnt/tide
dd if=/dev/urandom of=/tmp/one bs=1M count=24 2>/dev/null
cp /tmp/one /mnt/tide/one
cmp /tmp/one /pfs/one
for round in 1 2 3; do
    sleep 2.1
    cmp /tmp/one /mnt/tide/one
    cmp /tmp/one /mnt/tide/one
    tidepool resize 8MiB
    cmp /tmp/one /mnt/tide/one
    tidepool resize 96MiB
    tidepool evict --all
done
mkdir /mnt/tide/many
for number in $(seq 100); do echo "$number" > "/mnt/tide/many/$number"; done
[ "$(cat /mnt/tide/many/* | wc -l)" = 100 ]
mv /mnt/tide/many /mnt/tide/moved
[ "$(cat /pfs/moved/77)" = 77 ]
rm -r /mnt/tide/moved
tidepool status > /dev/null
tidepool node stop
! grep -q fuse.tidepool /proc/mounts
