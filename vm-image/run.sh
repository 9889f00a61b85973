#!/bin/sh
# What `make vm-image`, `make vm-test` and `make vm-shell` do:
#
#   sh vm-image/run.sh image|test|shell DIRECTORY RELEASE
#
# RELEASE is the node's Debian. DIRECTORY keeps what is made for the node, and nothing that is written on it.
# For the variables see docs/testing.md.
set -eu

what=$1 directory=$2 release=$3
here=$(dirname "$0")

mkdir -p "$directory"
# One at a time: they would write the same files, the packages' too, and an emulated processor needs a
# real one. What they start doesn't have the lock: it isn't held by who outlives this.
exec 9>"$directory/lock"
if ! flock --nonblock 9; then
    echo "$0: waiting for another run in $directory" >&2
    flock 9
fi
# Left behind by runs that were killed.
rm -rf --one-file-system "$directory"/qemu/new.* "$directory"/payload.img.* "$directory"/console.log.* "$directory"/shell.*

make --silent deb 9>&-
set -- target/deb/*.deb
if [ "$what" = image ]; then
    sh "$here/node.sh" "$directory" "$release" "$@" 9>&-
    exit
fi
# Debian 12's QEMU 7.2 lets a processor run an instruction that another one has just replaced, and Linux then panics
# with "Oops: int3". QEMU 8.1 has the fix ("accel/tcg: Always lock pages before translation").
qemu=$(sh "$here/base.sh" "$directory/qemu" trixie "$here/qemu.packages" --variant=extract 9>&-)
cargo nextest archive --locked --workspace --archive-file "$directory/tests.tar.zst" --zstd-level 1 9>&-
if [ "$what" = test ]; then
    counted=$(sh "$here/tests.sh" 9>&-)
fi
node=$(sh "$here/node.sh" "$directory" "$release" "$@" 9>&-)
sh "$here/payload.sh" "$directory/payload.img" "$directory/tests.tar.zst" \
    "$(command -v cargo-nextest)" target/deb/tree/usr/bin "$@" 9>&-
if [ "$what" = test ]; then
    # In its place, so that a signal to this script is the guest's end.
    exec sh "$here/boot.sh" "$qemu" "$node" "$directory/payload.img" "$directory/console.log" "$counted"
fi

scratch=$(mktemp --directory "$directory/shell.XXXXXX")
trap 'rm -rf --one-file-system "$scratch"' EXIT
trap 'exit 1' HUP TERM
echo "$0: \`poweroff\` ends the node, and Ctrl-A X at once; tests: sh /payload/run 'binary(node)'" >&2
sh "$here/qemu.sh" "$qemu" "$node" "$directory/payload.img" "$scratch" '' -serial mon:stdio 9>&-
