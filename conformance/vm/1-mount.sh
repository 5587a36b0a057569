# Bytes through the mount, before and after the store was emptied and resized.
set -e
tidepool node start --pfs /pfs --memory 96MiB --mount /mnt/tide
dd if=/dev/urandom of=/tmp/one bs=1M count=12 2>/dev/null
sum=$(md5sum < /tmp/one)
same() { [ "$(md5sum < "$1")" = "$sum" ] || { echo "$1 has other bytes $2"; exit 1; }; }
cp /tmp/one /mnt/tide/one
same /pfs/one "on the PFS"
sleep 2.1
same /mnt/tide/one "when it is first read"
same /mnt/tide/one "from memory"
tidepool resize 8MiB
same /mnt/tide/one "after the store shrank"
tidepool resize 96MiB
same /mnt/tide/one "after the store grew"
tidepool evict --all
same /mnt/tide/one "after the store was emptied"
mkdir /mnt/tide/many
for number in $(seq 50); do echo "$number" > "/mnt/tide/many/$number"; done
[ "$(cat /mnt/tide/many/* | wc -l)" = 50 ]
mv /mnt/tide/many /mnt/tide/moved
[ "$(cat /pfs/moved/37)" = 37 ]
rm -r /mnt/tide/moved
tidepool status > /dev/null
tidepool node stop
! grep -q fuse.tidepool /proc/mounts
