#!/bin/sh
# Slurm Epilog: ends the node when the last job of the machine is over (run as root).
# slurm.conf: Epilog=/etc/slurm/tidepool-epilog.sh
#
# Remove this file from slurm.conf to keep the cache warm between jobs. Owed writes are finished
# before the node ends; if that fails (a full PFS), the node goes on, this script says so in the
# system log, and the machine is drained by its exit code so that nobody pulls the plug. Where a
# program is still in the mount the node goes on as well, and the machine is not drained.

# Slurm gives no PATH, and the default of some shells ends in the working directory.
PATH=/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/bin
export PATH
socket=/run/tidepool/node.sock

tidepool node status --socket "$socket" >/dev/null 2>&1 || exit 0

# Without an answer from Slurm, jobs may still run: leave the node to them.
if ! listed=$(squeue --noheader --nodelist "$SLURMD_NODENAME" \
    --states RUNNING,SUSPENDED,COMPLETING --format %A 2>/dev/null); then
    logger -p daemon.warning -t tidepool-epilog -- "the node goes on: squeue failed"
    exit 0
fi
jobs=$(printf '%s\n' "$listed" | grep -v '^[[:space:]]*$' | grep -vcx "$SLURM_JOB_ID")
[ "${jobs:-0}" -gt 0 ] && exit 0

if output=$(tidepool node stop --socket "$socket" --wait 30 2>&1); then
    logger -t tidepool-epilog -- "$output"
    exit 0
else
    code=$?
fi
if [ "$code" -eq 6 ]; then
    # A program that the job left is still in the mount: no reason to drain the machine.
    logger -p daemon.warning -t tidepool-epilog -- "the node goes on: $output"
    exit 0
fi
logger -p daemon.err -t tidepool-epilog -- "$output"
exit 1
