# Mappings, at the moments when the store is emptied (../moments.c).
set -e
for number in 1 2 3; do
    # shellcheck disable=SC2086
    "$MOMENTS" "mapped.$number" $EVICT
done
