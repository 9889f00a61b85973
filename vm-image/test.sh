#!/bin/sh
# What `make vm-test` does with programs that are built:
#
#   sh vm-image/test.sh DIRECTORY
#
# What is made for it is kept in DIRECTORY. For the variables see docs/testing.md.
set -eu

directory=$1
here=$(dirname "$0")

mkdir -p "$directory"
# One run at a time: they would write the same files, and an emulated processor needs a real one.
exec 9>"$directory/lock"
if ! flock --nonblock 9; then
    echo "$0: waiting for another run in $directory" >&2
    flock 9
fi
# Of runs that were killed, and the last one's programs.
rm -rf --one-file-system "$directory"/payload.img.* "$directory"/console.log.* "$directory/node"

make --silent install DESTDIR="$directory/node" PREFIX=
cargo nextest archive --locked --workspace --archive-file "$directory/tests.tar.zst" --zstd-level 1
counted=$(sh "$here/tests.sh")
root=$(sh "$here/root.sh" "$directory")
sh "$here/payload.sh" "$directory/payload.img" "$directory/tests.tar.zst" \
    "$(command -v cargo-nextest)" "$directory"/node/bin/*
# In its place, so that a signal to this script is the guest's end.
exec sh "$here/boot.sh" "$root" "$directory/payload.img" "$directory/console.log" "$counted"
