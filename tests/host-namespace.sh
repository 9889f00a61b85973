#!/bin/sh
# Makes a private mount namespace look like a systemd host's, then runs a command in it:
#
#   unshare --mount --propagation private sh tests/host-namespace.sh cargo nextest run …
#
# Nothing that is mounted or unmounted from here on is seen outside.
set -eu

if [ $# -eq 0 ]; then
    echo "usage: unshare --mount --propagation private sh $0 COMMAND [ARGUMENT…]" >&2
    exit 64
fi
# The id of the mount on / in a process's namespace; each namespace has ids of its own. (The link
# /proc/1/ns/mnt would say it better, but not everywhere may root read it.)
root_mount() {
    while read -r id _parent _device _root point _rest; do
        if [ "$point" = / ]; then
            echo "$id"
        fi
    done <"/proc/$1/mountinfo"
}

first=$(root_mount 1)
if [ -z "$first" ] || [ "$first" = "$(root_mount self)" ]; then
    echo "$0: this may be the host's own mount namespace: start it with unshare --mount --propagation private" >&2
    exit 64
fi

# crun refuses cgroup v1 with a v2 mount beside it: show the v1 hierarchies alone. They get a tmpfs
# of their own, for crun leaves plain files in the place of the missing v2 mount.
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

# crun gives a container in a user namespace its standard streams, and most are /dev/null: let that
# be a node of its own.
null=$(mktemp --directory)
mount -t tmpfs -o mode=755 null "$null"
mknod -m 666 "$null/null" c 1 3
mount --bind "$null/null" /dev/null
umount --lazy "$null"
rmdir "$null"

# On a systemd host / is shared; what a runtime leaks must show here as it would there.
mount --make-rshared /

exec "$@"
