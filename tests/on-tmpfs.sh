#!/bin/sh
# Mounts a tmpfs on /tmp, as Debian 13 does, and runs a command. For a mount namespace of its own only:
#
#   unshare --mount --propagation private sh tests/host-namespace.sh sh tests/on-tmpfs.sh COMMAND [ARGUMENT…]
#
# The suites write disk images, root file systems and many small files to /tmp, and their run is a fifth shorter without
# a disk. ext4 without a journal, which many virtual machines have, is the slowest: for each new file it searches among
# the inodes that were freed in the last seconds (recently_deleted() in fs/ext4/ialloc.c).
#
# If the repository or cargo's directory is below /tmp, nothing is mounted, because the mount would hide it.
set -eu

case $PWD/:${CARGO_HOME-}/ in
/tmp/* | *:/tmp/*) echo "$0: the tests write to the disk, because the repository or CARGO_HOME is below /tmp" >&2 ;;
*)
    mount -t tmpfs -o mode=1777 tmp /tmp
    export TMPDIR=/tmp
    ;;
esac
exec "$@"
