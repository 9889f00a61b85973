#!/bin/sh
# Gives a private mount namespace the mounts of a host with systemd, and runs a command in it:
#
#   unshare --mount --propagation private sh tests/host-namespace.sh cargo nextest run …
#
# Mounts and unmounts in it do not affect the host.
set -eu

if [ $# -eq 0 ]; then
    echo "usage: unshare --mount --propagation private sh $0 COMMAND [ARGUMENT…]" >&2
    exit 64
fi
# Prints the id of the mount at / in the mount namespace of process $1. Each namespace has ids of its own. (The link
# /proc/1/ns/mnt would be simpler, but on some hosts not even root may read it.)
root_mount() {
    while read -r id _parent _device _root point _rest; do
        if [ "$point" = / ]; then
            echo "$id"
        fi
    done <"/proc/$1/mountinfo"
}

first=$(root_mount 1)
if [ -z "$first" ] || [ "$first" = "$(root_mount self)" ]; then
    echo "$0: this may be the host's mount namespace: start it with unshare --mount --propagation private" >&2
    exit 64
fi

# crun refuses cgroup v1 with a v2 mount beside it, so only the v1 hierarchies are mounted. They are on a tmpfs of their
# own, because crun leaves plain files where the v2 mount is missing.
if [ "$(stat --file-system --format %T /sys/fs/cgroup)" = tmpfs ] &&
    mountpoint --quiet /sys/fs/cgroup/unified; then
    new=$(mktemp --directory)
    mount -t tmpfs -o mode=755 cgroup "$new"
    for hierarchy in /sys/fs/cgroup/*; do
        name=${hierarchy##*/}
        if [ -L "$hierarchy" ]; then
            cp --no-dereference "$hierarchy" "$new/$name"
        elif [ "$name" != unified ]; then
            mkdir "$new/$name"
            mount --bind "$hierarchy" "$new/$name"
        fi
    done
    umount --recursive --lazy /sys/fs/cgroup
    mount --move "$new" /sys/fs/cgroup
    rmdir "$new"
fi

# For a container in a user namespace crun changes the owner of its standard streams. Most of them are /dev/null, so
# /dev/null is a device node of this namespace's own.
null=$(mktemp --directory)
mount -t tmpfs -o mode=755 null "$null"
mknod -m 666 "$null/null" c 1 3
mount --bind "$null/null" /dev/null
umount --lazy "$null"
rmdir "$null"

# With systemd / is a shared mount. Mounts that a runtime leaks must propagate here as they would there.
mount --make-rshared /

exec "$@"
