#!/bin/sh
# Slurm Prolog: a node for the time of the job, on every compute node of it (run as root).
# slurm.conf: Prolog=/etc/slurm/tidepool-prolog.sh
#
# It starts at most one node a machine: jobs that share a machine share it. Set the directory,
# mount point and share of memory for your site in /etc/tidepool/node.toml (`pfs`, `mount`,
# `memory`). Slurm does not count the store as memory of the job; leave room for it with
# MemSpecLimit in slurm.conf.
#
# A prolog that fails drains the machine. The memory level is a cache, so its absence is no
# reason for that: jobs find their files on the PFS itself. The failure goes to the system log.

# Slurm gives no PATH, and the default of some shells ends in the working directory.
PATH=/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/bin
export PATH
socket=/run/tidepool/node.sock

if ! tidepool node status --socket "$socket" >/dev/null 2>&1; then
    tidepool node start --config /etc/tidepool/node.toml --socket "$socket" 2>&1 |
        logger -t tidepool-prolog
fi
exit 0
