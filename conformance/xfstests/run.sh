#!/bin/sh
# One test of xfstests, in mount and process name spaces of its own: `run.sh TEST`, for example
# `run.sh generic/001`. PLACE is an empty directory, XFSTESTS the build, SIZE that of each volume;
# with TIDEPOOL, the program, the test runs on the mounts of two nodes, without it on the volumes.
# The results are left in PLACE/results. What it mounts and starts ends with the name spaces.
set -eu

# Everything lies at short names of /tmp, whatever runs beside.
mkdir "$PLACE/results" "$PLACE/xfstests" "$PLACE/bin" "$PLACE/etc"
for volume in test scratch; do
    mkdir "$PLACE/$volume" "$PLACE/$volume.mount"
    truncate -s "$SIZE" "$PLACE/$volume.image"
    mkfs.ext4 -q -F "$PLACE/$volume.image"
done
for program in mount-volume df umount; do
    cp "$(dirname "$0")/$program.sh" "$PLACE/bin/$program"
    chmod 755 "$PLACE/bin/$program"
done
if [ -n "${TIDEPOOL:-}" ]; then
    touch "$PLACE/bin/tidepool"
    mount --bind "$TIDEPOOL" "$PLACE/bin/tidepool"
    export TIDEPOOL=/tmp/bin/tidepool
fi
mount --bind "$XFSTESTS" "$PLACE/xfstests"

# The users of the suite, who need not be on the machine.
cp /etc/passwd /etc/group "$PLACE/etc"
number=59000
for user in fsgqa fsgqa2 123456-fsgqa; do
    echo "$user:*:$number:$number::/tmp:/bin/bash" >>"$PLACE/etc/passwd"
    echo "$user:x:$number:" >>"$PLACE/etc/group"
    number=$((number + 1))
done
mount --bind "$PLACE/etc/passwd" /etc/passwd
mount --bind "$PLACE/etc/group" /etc/group
# What the kernel says of the tests beside this one is not this one's.
touch "$PLACE/etc/kmsg"
mount --bind "$PLACE/etc/kmsg" /dev/kmsg
mount -o remount,bind,ro /dev/kmsg

chmod 1777 "$PLACE"
mount --rbind "$PLACE" /tmp
cd /tmp/xfstests
export PATH="/tmp/bin:$PATH:/usr/sbin:/sbin"
export FSTYP=fuse FUSE_SUBTYP=./tmp/bin/mount-volume HOST_OPTIONS=/tmp/etc/none RESULT_BASE=/tmp/results
export TEST_DEV=/tmp/test/volume TEST_DIR=/tmp/test.mount
export SCRATCH_DEV=/tmp/scratch/volume SCRATCH_MNT=/tmp/scratch.mount
./check "$1"
