# lld: maps its inputs, closes them, and writes its output through a mapping.
set -e
command -v ld.lld > /dev/null && command -v cc > /dev/null || { echo "no lld"; exit 77; }
mkdir in
for number in $(seq 24); do
    { echo "const unsigned char table$number[262144] = {[0 ... 262143] = $number};"
      echo "int value$number(int at) { return table$number[at]; }"; } > "in/$number.c"
    cc -O1 -c -o "in/$number.o" "in/$number.c"
done
{ for number in $(seq 24); do echo "int value$number(int);"; done
  echo "#include <stdio.h>"
  echo "int main(void) { long sum = 0; for (int at = 0; at < 262144; at += 4096) { sum += 0"
  for number in $(seq 24); do echo " + value$number(at)"; done
  printf '%s\n' '; } printf("%ld\n", sum); return 0; }'; } > in/main.c
cc -O1 -c -o in/main.o in/main.c
cp -r in "$SCRATCH/in"
(cd "$SCRATCH" && cc -fuse-ld=lld -Wl,--build-id=none -o wanted in/*.o)
for round in $(seq 12); do
    cc -fuse-ld=lld -Wl,--build-id=none -o program in/*.o
    cmp program "$SCRATCH/wanted"
    [ "$(./program)" = 19200 ]
done
