#!/bin/sh
# Runs the tests of this crate and the contract suite on a real parallel file system, on one
# machine: `real-pfs.sh gluster` (packages glusterfs-server, glusterfs-client) or
# `real-pfs.sh moosefs` (packages moosefs-master, moosefs-chunkserver, moosefs-client).
# Needs root. Servers, ports, state and mounts live in namespaces of their own and end with them.
set -eu

kind=${1:?usage: real-pfs.sh gluster|moosefs}
here=$(cd "$(dirname "$0")/.." && pwd)

if [ "${REAL_PFS_INSIDE:-}" != yes ]; then
    work=$(mktemp -d)
    trap 'rm -rf --one-file-system "$work"' EXIT
    # Built outside: there is no network inside.
    (cd "$here" && cargo test --no-run -p tidepool-pfs && cargo build -p tidepool-pfs --release --examples)
    REAL_PFS_INSIDE=yes WORK=$work unshare --mount --net --pid --fork --kill-child \
        --mount-proc --propagation private "$0" "$kind"
    exit
fi

wait_for() { # command... : until it succeeds, at most 30 s
    for _ in $(seq 60); do
        if "$@" >/dev/null 2>&1; then return 0; fi
        sleep 0.5
    done
    echo "gave up waiting for: $*" >&2
    exit 1
}

ip link set lo up
# Neither Gluster nor MooseFS takes a loopback address.
host=10.77.0.1
ip address add $host/24 dev lo
mount -t tmpfs tmpfs /run
mnt=$WORK/mnt
mkdir -p "$mnt"

start_gluster() {
    mkdir -p "$WORK/lib" "$WORK/log" "$WORK/brick1" "$WORK/brick2" /run/gluster
    mkdir -p /var/lib/glusterd /var/log/glusterfs
    mount --bind "$WORK/lib" /var/lib/glusterd
    mount --bind "$WORK/log" /var/log/glusterfs
    glusterd --log-level WARNING
    wait_for gluster --mode=script pool list
    gluster --mode=script volume create vol "$host:$WORK/brick1" "$host:$WORK/brick2" force
    gluster --mode=script volume set vol features.shard on
    gluster --mode=script volume set vol features.shard-block-size 16MB
    gluster --mode=script volume set vol performance.read-ahead off
    gluster --mode=script volume start vol
    glusterfs --volfile-server=$host --volfile-id=vol --log-file="$WORK/log/fuse.log" "$mnt"
    wait_for mountpoint -q "$mnt"
    wait_for touch "$mnt/up"
}

start_moosefs() {
    mkdir -p "$WORK/master" "$WORK/chunks" "$WORK/disk"
    truncate -s 4G "$WORK/disk.img"
    mkfs.ext4 -q -F "$WORK/disk.img"
    mount -o loop "$WORK/disk.img" "$WORK/disk"
    mkdir "$WORK/disk/mfs"
    printf '* / rw,alldirs,maproot=0\n' >"$WORK/exports"
    printf 'WORKING_USER = root\nWORKING_GROUP = root\nDATA_PATH = %s\nEXPORTS_FILENAME = %s\n' \
        "$WORK/master" "$WORK/exports" >"$WORK/master.cfg"
    printf 'MFSM NEW' >"$WORK/master/metadata.mfs"
    mfsmaster -c "$WORK/master.cfg" start
    printf '%s\n' "$WORK/disk/mfs" >"$WORK/disks"
    printf 'WORKING_USER = root\nWORKING_GROUP = root\nDATA_PATH = %s\nHDD_CONF_FILENAME = %s\nMASTER_HOST = %s\n' \
        "$WORK/chunks" "$WORK/disks" "$host" >"$WORK/chunk.cfg"
    mfschunkserver -c "$WORK/chunk.cfg" start
    wait_for mfsmount "$mnt" -H "$host"
    mfssetgoal -r 1 "$mnt"
    wait_for sh -c "echo x >$mnt/up"
}

"start_$kind"
rm -f "$mnt/up"
status=0
mkdir "$mnt/project"
cd "$here"
export CARGO_NET_OFFLINE=true
target=$(cargo metadata --no-deps --format-version 1 | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
"$target/release/examples/contract" "$mnt/project" || status=1
left=$(find "$mnt/project" -mindepth 1 | wc -l)
[ "$left" = 0 ] || { echo "the suite left $left names behind" >&2; status=1; }
head -c 256M /dev/urandom >"$mnt/project/data"
"$target/release/examples/fill_rate" "$mnt/project/data" || status=1
rm "$mnt/project/data"
TIDEPOOL_TEST_PFS=$mnt/project cargo test -q -p tidepool-pfs --test suite || status=1
umount -l "$mnt"
exit $status
