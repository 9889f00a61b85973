#!/bin/sh
# Builds the programs of another revision, for the suite of upgrades:
#
#   sh tests/old-programs.sh <revision> <directory>
#
# They come to stand in <directory>/bin; the source and what was built are kept beside them, so that
# another revision takes less time.
set -eu

revision=$(git rev-parse --verify --quiet "$1^{commit}") || {
    echo "$0: $1 is no revision; FROM=<revision> names one, such as HEAD~20" >&2
    exit 1
}
directory=$2
source=$directory/source
mkdir -p "$directory"
# In a directory that is no clone git would find the repository around it, and change that.
if [ "$(git -C "$source" rev-parse --show-toplevel 2>/dev/null)" != "$(realpath "$source")" ]; then
    rm -rf "$source"
    git clone --quiet --shared --no-checkout "$(git rev-parse --show-toplevel)" "$source"
fi
git -C "$source" checkout --quiet --force --detach "$revision"
packages='--package runcrust --package crust-mount-hook'
if [ -d "$source/crates/ops" ]; then
    packages="$packages --package crust-ops"
fi
rm -rf "${directory:?}/bin"
mkdir "$directory/bin"
# The flags are those of `make build`, without which programs aren't static.
(
    cd "$source"
    # shellcheck disable=SC2086 # words
    RUSTFLAGS='-C target-feature=+crt-static' CARGO_TARGET_DIR="$directory/target" \
        cargo build --locked --release --target "$TARGET" $packages
)
for program in runcrust crust-mount-hook crust_ops; do
    built=$directory/target/$TARGET/release/$program
    if [ -d "$source/crates/ops" ] || [ $program != crust_ops ]; then
        cp "$built" "$directory/bin/"
    fi
done
