# The doctor finds no failure on a stock machine.
set -e
tidepool node start --pfs /pfs --memory 96MiB --mount /mnt/tide
tidepool doctor || { echo "doctor: exit $?"; exit 1; }
tidepool node stop
