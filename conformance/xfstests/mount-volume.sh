#!/bin/sh
# Mounts a volume of run.sh; mount(8) calls it: `mount-volume SOURCE DIRECTORY -o OPTIONS`. Without
# a node it is the volume itself that is mounted, under the name that the mount of a node has.
set -eu
source=$1 directory=$2 options=${4:-}
base=${source%/volume}

# What is asked for beyond the defaults.
asked=
IFS=,
for option in $options; do
    case $option in rw | dev | suid | remount) ;; *) asked=$asked,$option ;; esac
done
unset IFS
# A node's mount keeps its own flags.
[ -z "${TIDEPOOL:-}" ] || asked=$asked,nosuid,nodev

case ,$options, in *,remount,*) exec mount -i -o "remount,$options$asked" "$directory" ;; esac

mounted=$(findmnt -rncv -S "$source" -o TARGET | head -n 1)
if [ -n "$mounted" ]; then
    exec mount --bind "$mounted" "$directory"
fi

# A node outlives its mount, and the file system below it does so too.
[ -z "${TIDEPOOL:-}" ] || "$TIDEPOOL" node stop --socket "$base.socket" >/dev/null 2>&1 || true
if ! mountpoint -q "$base"; then
    # The device goes with its last user.
    device=$(losetup --find --show "$base.image")
    exec 9<"$device"
    losetup --detach "$device"
    if [ -z "${TIDEPOOL:-}" ]; then
        mknod "$source" b "0x$(stat -c %t "$device")" "0x$(stat -c %T "$device")"
        mount -i -t ext4 -o "$options" "$source" "$directory" || failed=$?
        rm "$source"
        exit "${failed:-0}"
    fi
    mount -t ext4 "$device" "$base"
    exec 9<&-
fi
mkdir -p "$source"
# shellcheck disable=SC2086
"$TIDEPOOL" node start --pfs "$source" --mount "$directory" --socket "$base.socket" \
    --memory 512MiB ${NODE_OPTIONS:-} >/dev/null
case $asked in
,nosuid,nodev) ;;
*) mount -i -o "remount$asked" "$directory" ;;
esac
