# A plain user mounts by fusermount3 and stops the node, without /etc/mtab.
set -e
grep -q user_allow_other /etc/fuse.conf
mkdir /tmp/user && chown 1000:1000 /tmp/user
cat > /tmp/user.sh <<'S'
set -e
export XDG_RUNTIME_DIR=/tmp/user HOME=/tmp/user
cd /tmp/user
mkdir mnt pfs
tidepool node start --pfs /tmp/user/pfs --memory 32MiB --mount /tmp/user/mnt
echo hello > mnt/file
[ "$(cat pfs/file)" = hello ]
timeout 60 tidepool node stop
S
su tide -s /bin/sh -c 'sh /tmp/user.sh'
! grep -q fuse.tidepool /proc/mounts
