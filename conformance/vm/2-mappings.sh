# Mappings that outlive what was resident; files that change on the PFS.
set -e
tidepool node start --pfs /pfs --memory 96MiB --mount /mnt/tide
timeout 120 moments /mnt/tide/mapped tidepool evict --all
# What is written on the PFS shows at the next open, of the same length and of another one.
for version in first other "much longer"; do
    echo "$version" > /pfs/versions
    for read in 1 2; do
        now=$(cat /mnt/tide/versions)
        [ "$now" = "$version" ] || { echo "read $read shows $now and not $version"; exit 1; }
    done
done
tidepool node stop
