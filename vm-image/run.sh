#!/bin/sh
# Builds the node, and boots it for tests or for a shell (`make vm-image`, `make vm-test`, `make vm-shell`):
#
#   sh vm-image/run.sh image|test|shell DIRECTORY RELEASE PROGRAMS
#
# RELEASE is the node's Debian release. What is built for the node is kept in DIRECTORY; what is written on the node is
# not. PROGRAMS is a directory with crust-csi and crustlet, which are in no package. docs/testing.md lists the environment
# variables.
set -eu

action=$1 directory=$2 release=$3 programs=$4
here=$(dirname "$0")

mkdir -p "$directory"
# One run at a time: runs write the same files, also those of `make deb`, and an emulated processor keeps a real one
# busy. The programs that this script starts don't inherit the lock, so none of them keeps it afterwards.
exec 9>"$directory/lock"
if ! flock --nonblock 9; then
    echo "$0: waiting for another run, which uses $directory" >&2
    flock 9
fi
# Files and directories that killed runs left behind.
rm -rf --one-file-system "$directory"/qemu/new.* "$directory"/payload.img.* "$directory"/console.log.* "$directory"/shell.*

make --silent deb 9>&-
set -- target/deb/*.deb
if [ "$action" = image ]; then
    sh "$here/node.sh" "$directory" "$release" "$@" 9>&-
    exit
fi
make --silent test-programs 9>&-
# QEMU of Debian 13, because with QEMU 7.2 of Debian 12 a processor can run an instruction that another one has just
# replaced, and Linux panics with "Oops: int3". QEMU 8.1 fixed that ("accel/tcg: Always lock pages before translation").
qemu=$(sh "$here/base.sh" "$directory/qemu" trixie "$here/qemu.packages" --variant=extract 9>&-)
cargo nextest archive --locked --workspace --archive-file "$directory/tests.tar.zst" --zstd-level 1 9>&-
if [ "$action" = test ]; then
    counts=$(sh "$here/tests.sh" 9>&-)
fi
node=$(sh "$here/node.sh" "$directory" "$release" "$@" 9>&-)
sh "$here/payload.sh" "$directory/payload.img" "$directory/tests.tar.zst" \
    "$(command -v cargo-nextest)" "$programs" "$@" 9>&-
if [ "$action" = test ]; then
    # In the place of this process, so that a signal to it stops the guest.
    exec sh "$here/boot.sh" "$qemu" "$node" "$directory/payload.img" "$directory/console.log" "$counts"
fi

scratch=$(mktemp --directory "$directory/shell.XXXXXX")
trap 'rm -rf --one-file-system "$scratch"' EXIT
trap 'exit 1' HUP TERM
echo "$0: run tests with \`sh /payload/run 'binary(node)'\`; stop the node with \`poweroff\`, or at once with Ctrl-A X" >&2
sh "$here/qemu.sh" "$qemu" "$node" "$directory/payload.img" "$scratch" '' -serial mon:stdio 9>&-
