# cargo: rustc maps the metadata of what it builds on.
set -e
command -v cargo > /dev/null || { echo "no cargo"; exit 77; }
export CARGO_TARGET_DIR="$PWD/target"
mkdir -p one/src two/src && cat > Cargo.toml <<'C'
[workspace]
members = ["one", "two"]
resolver = "2"
C
printf '[package]\nname="one"\nversion="0.1.0"\nedition="2021"\n' > one/Cargo.toml
printf '[package]\nname="two"\nversion="0.1.0"\nedition="2021"\n[dependencies]\none={path="../one"}\n' \
    > two/Cargo.toml
for number in $(seq 200); do
    echo "#[derive(Debug, Clone, Default)] pub struct S$number { pub a: u64, pub b: String }"
done > one/src/lib.rs
echo 'fn main() { println!("{:?}", one::S200 { a: 7, b: "x".into() }); }' > two/src/main.rs
for round in 1 2 3; do
    cargo build -q --offline
    [ "$(target/debug/two)" = 'S200 { a: 7, b: "x" }' ]
    cargo clean -q
done
