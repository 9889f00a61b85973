#!/bin/sh
# Runs a command with another root file system, as on a machine of its own. This script must be the first process of new
# mount and pid namespaces (tests/contained.sh):
#
#   contained sh tests/enter-root.sh ROOT WORKSPACE COMMAND [ARGUMENT…]
#
# The command runs in the directory WORKSPACE, which has the same path in the new root. It sees this host's devices and
# cgroups, but not its processes, and has a /run, /tmp and /dev/shm of its own. Processes that it leaves running end
# with it.
set -eu

root=$1 workspace=$2
shift 2

# pivot_root(2), which this script and runtimes call, needs a root that is a mount.
mount --rbind "$root" "$root"
mount -t proc proc "$root/proc"
for directory in sys dev; do
    mount --rbind "/$directory" "$root/$directory"
done
mount -t tmpfs -o mode=755 run "$root/run"
mount -t tmpfs -o mode=1777,size=6G tmp "$root/tmp"
# podman has its locks there, in a format that depends on its version.
mount -t tmpfs -o mode=1777 shm "$root/dev/shm"
mkdir -p "$root$workspace" "$root/run/old"
mount --bind "$workspace" "$root$workspace"
cd "$root"
pivot_root . run/old
umount --lazy /run/old
cd "$workspace"

# No exec: the first process of a pid namespace has to reap orphaned processes, which this shell does. The kernel
# doesn't deliver a SIGTERM to it, because it has no handler. The command gets the signal, and the shell exits after it.
"$@" &
wait $!
