# Has cargo download something small into the current folder, which is empty.
mkdir home src && : > src/lib.rs
cp "${CARGO_HOME:-$HOME/.cargo}"/config* home 2>/dev/null
printf '[package]\nname = "asks"\nedition = "2021"\n[dependencies]\nitoa = "1"\n' > Cargo.toml
CARGO_HOME="$PWD/home" cargo fetch
