# Mappings that outlive what was resident.
set -e
tidepool node start --pfs /pfs --memory 96MiB --mount /mnt/tide
timeout 120 moments /mnt/tide/mapped tidepool evict --all
tidepool node stop
