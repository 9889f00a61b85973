#!/bin/sh
# Builds the programs of another revision, for the suite `upgrade`:
#
#   sh tests/old-programs.sh <revision> <directory>
#
# The programs are installed into <directory>/bin. The sources and the build directory are kept beside them, which makes
# the build of another revision faster.
set -eu

revision=$(git rev-parse --verify --quiet "$1^{commit}") || {
    echo "$0: '$1' is not a git revision: set FROM=<revision>, for example FROM=HEAD~20" >&2
    exit 1
}
directory=$2
source=$directory/source
mkdir -p "$directory"
# If the directory isn't a clone, git would find the repository around it, and check out the revision there.
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
# The flag makes the programs static, as in `make build`.
(
    cd "$source"
    # shellcheck disable=SC2086 # a list of options
    RUSTFLAGS='-C target-feature=+crt-static' CARGO_TARGET_DIR="$directory/target" \
        cargo build --locked --release --target "$TARGET" $packages
)
for program in runcrust crust-mount-hook crust_ops; do
    built=$directory/target/$TARGET/release/$program
    if [ -d "$source/crates/ops" ] || [ $program != crust_ops ]; then
        cp "$built" "$directory/bin/"
    fi
done
