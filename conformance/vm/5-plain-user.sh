# A plain user mounts by fusermount3 and stops the node. The stop ends as well where there is no
# /etc/mtab, without which fusermount3 does not unmount.
set -e
grep -q user_allow_other /etc/fuse.conf
mkdir /tmp/user && chown 1000:1000 /tmp/user
cat > /tmp/user.sh <<'S'
set -e
export XDG_RUNTIME_DIR=/tmp/user HOME=/tmp/user
cd /tmp/user
mkdir -p mnt pfs
tidepool node start --pfs /tmp/user/pfs --memory 32MiB --mount /tmp/user/mnt
echo hello > mnt/file
[ "$(cat pfs/file)" = hello ]
stopped=0
timeout 60 tidepool node stop || stopped=$?
[ $stopped != 143 ] && [ $stopped != 124 ] && exit $stopped
echo "node stop did not end"; exit 143
S
test ! -e /etc/mtab
# How it ends is the helper's matter; that it ends is ours.
status=0
su tide -s /bin/sh -c 'sh /tmp/user.sh' || status=$?
[ $status != 143 ]
echo "without /etc/mtab: exit $status"
if pidof tidepool; then echo "the node is still there"; exit 1; fi
if cat /tmp/user/mnt/file 2> /dev/null; then echo "nobody answers, and yet it reads"; exit 1; fi
umount -l /tmp/user/mnt
ln -s /proc/self/mounts /etc/mtab
su tide -s /bin/sh -c 'sh /tmp/user.sh'
! grep -q fuse.tidepool /proc/mounts
