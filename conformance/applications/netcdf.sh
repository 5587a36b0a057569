# netCDF in its classic and its HDF5 forms: written, copied from form to form, compared by its tools.
set -e
for program in ncgen ncdump nccopy h5diff h5repack; do
    command -v $program > /dev/null || { echo "no $program"; exit 77; }
done
{ echo 'netcdf a { dimensions: t = unlimited; x = 500; variables: double v(t, x); int n(t);'
  echo 'v:units = "m"; data:'
  seq -s ', ' 1 300 | sed 's/^/n = /; s/$/;/'
  seq -s ', ' 0.5 150000 | sed 's/^/v = /; s/$/; }/'; } > "$SCRATCH/a.cdl"
for round in 1 2 3; do
    for form in classic 64-bit-offset netCDF-4 netCDF-4-classic; do
        ncgen -k "$form" -o "$form.nc" "$SCRATCH/a.cdl"
        [ $form != classic ] || ncdump -n a "$form.nc" > "$SCRATCH/wanted"
        ncdump -n a "$form.nc" | cmp - "$SCRATCH/wanted"
        nccopy -k netCDF-4-classic -d 4 -s -c t/10,x/100 "$form.nc" packed.nc
        nccopy -k 64-bit-offset packed.nc plain.nc
        ncdump -n a packed.nc | cmp - "$SCRATCH/wanted"
        ncdump -n a plain.nc | cmp - "$SCRATCH/wanted"
    done
    h5repack -f GZIP=1 -l CHUNK=20x50 netCDF-4.nc repacked.h5
    for name in n v; do h5diff -q netCDF-4.nc repacked.h5 $name $name; done
done
