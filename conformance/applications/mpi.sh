# MPI-IO by both of Open MPI's ways to write (../mpi-io.c), and by whatever else `mpirun` is.
set -e
command -v mpicc > /dev/null && command -v mpirun > /dev/null || { echo "no MPI"; exit 77; }
mpicc -O1 -o "$SCRATCH/mpi-io" "$(dirname "$0")/../mpi-io.c"
ways="any"
options=
if mpirun --version | grep -q 'Open MPI'; then
    ways="ompio romio321"
    options="--oversubscribe --allow-run-as-root --mca btl self,vader"
fi
for way in $ways; do
    [ "$way" = any ] || export OMPI_MCA_io="$way"
    # shellcheck disable=SC2086
    mpirun $options -n 4 "$SCRATCH/mpi-io" "$PWD/$way"
done
# Both left the same bytes.
[ "$ways" = any ] || cmp ompio.interleaved romio321.interleaved
