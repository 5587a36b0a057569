# Extended attributes and ACLs by the programs that carry them.
set -e
for program in setfattr getfattr rsync tar; do
    command -v $program > /dev/null || { echo "no $program"; exit 77; }
done
mkdir -p from/deep
for number in $(seq 60); do
    seq "$number" > "from/deep/$number"
    setfattr -n user.number -v "value $number" "from/deep/$number"
done
setfattr -n user.empty -v "" from
told() { (cd "$1" && getfattr -R -d -m user . | sort); }
told from > "$SCRATCH/wanted"
grep -q 'user.number="value 60"' "$SCRATCH/wanted"
cp -a from copied && told copied | cmp - "$SCRATCH/wanted"
rsync -aX from/ synced && told synced | cmp - "$SCRATCH/wanted"
mkdir unpacked && tar --xattrs -cf from.tar from && tar --xattrs -xf from.tar -C unpacked
told unpacked/from | cmp - "$SCRATCH/wanted"
rsync -aX from/ "$SCRATCH/out" && told "$SCRATCH/out" | cmp - "$SCRATCH/wanted"
rsync -aXc --dry-run --itemize-changes from/ synced | (! grep .)
