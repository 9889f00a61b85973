#!/bin/sh
# Runs a command with another root file system, which is to be that of a machine of its own. It is the first
# process of mount and pid namespaces of its own (tests/contained.sh):
#
#   contained sh tests/enter-root.sh ROOT WORKSPACE COMMAND [ARGUMENT…]
#
# The command runs in the directory WORKSPACE, which is there under the same path, and sees this host's
# devices and cgroups, but neither its processes nor its /run, /tmp and /dev/shm. What it leaves running ends
# with it.
set -eu

root=$1 workspace=$2
shift 2

# Runtimes pivot away from the root, so it has to be a mount.
mount --rbind "$root" "$root"
mount -t proc proc "$root/proc"
for shown in sys dev; do
    mount --rbind "/$shown" "$root/$shown"
done
mount -t tmpfs -o mode=755 run "$root/run"
mount -t tmpfs -o mode=1777,size=6G tmp "$root/tmp"
# podman's locks are there, in a format of its version.
mount -t tmpfs -o mode=1777 shm "$root/dev/shm"
mkdir -p "$root$workspace" "$root/run/old"
mount --bind "$workspace" "$root$workspace"
cd "$root"
pivot_root . run/old
umount --lazy /run/old
cd "$workspace"

# Not in its place: the first process of a pid namespace has to reap what others leave. It has no handler for
# SIGTERM, and so gets none: the command does, and this ends with it.
"$@" &
wait $!
