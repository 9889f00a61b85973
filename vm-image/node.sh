#!/bin/sh
# Builds the node's root file system from the lower layer, runcrust's packages, and the files in node/:
#
#   sh vm-image/node.sh CACHE RELEASE PACKAGE.deb…
#
# Prints the directory below CACHE that contains root.img, vmlinuz and initrd.img. Its name is the digest of what they
# are built from; they are only rebuilt when that changes.
set -eu

cache=$1 release=$2
shift 2
here=$(dirname "$0")

mkdir -p "$cache"
# One build at a time. The second one finds the result of the first.
exec 8>"$cache/cache.lock"
flock 8
# Directories that killed runs left behind.
rm -rf --one-file-system "$cache"/new.*

base=$(sh "$here/base.sh" "$cache" "$release" "$here/packages")
# The digest covers the names, modes and links in the tree, too.
tree=$(tar --create --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --directory "$here/node" . | sha256sum)
key=$({
    echo "${base##*/} $tree"
    cat "$0" "$@"
} | sha256sum | cut -c 1-16)
node=$cache/node-$key

if [ -d "$node" ]; then
    echo "$node"
    exit
fi

new=$(mktemp --directory "$cache/new.XXXXXX")
trap 'rm -rf --one-file-system "$new"' EXIT
trap 'exit 1' HUP INT TERM

# Units that delay the boot, or that the node does not need.
masked='apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer
    e2scrub_reap.service fstrim.timer getty@tty1.service serial-getty@ttyS0.service
    podman.service podman.socket podman-auto-update.service podman-auto-update.timer
    nfs-server.service nfs-mountd.service nfs-idmapd.service nfs-blkmap.service nfsdcld.service
    fsidd.service rpc-statd-notify.service
    podman-restart.service podman-clean-transient.service systemd-hwdb-update.service
    systemd-update-utmp.service systemd-update-utmp-runlevel.service'

cp --archive --reflink=auto "$base/root" "$new/root"
# As on any node, dpkg enables the services. It does not start them, because systemd does not run in this root.
dpkg --root="$new/root" --force-not-root --install "$@" >&2
# Copied after dpkg, as if by an operator: dpkg treats them as changed configuration files.
cp --recursive --no-dereference --preserve=mode,links "$here/node/." "$new/root"
for handler in crust:/usr/bin/runcrust crust-crun:/usr/local/bin/runcrust-crun; do
    chroot "$new/root" "${handler#*:}" install containerd --handler "${handler%%:*}" \
        --systemd-cgroup true >&2
done
for unit in $masked; do
    ln -sf /dev/null "$new/root/etc/systemd/system/$unit"
done
for unit in payload.mount payload.service console.service; do
    ln -sf "../$unit" "$new/root/etc/systemd/system/multi-user.target.wants/$unit"
done
sed -i 's/^root:[^:]*:/root::/' "$new/root/etc/shadow"
# So that services with ConditionNeedsUpdate= do not run at boot.
touch "$new/root/etc/.updated" "$new/root/var/.updated"

truncate --size 6G "$new/root.img"
mke2fs -q -t ext4 -d "$new/root" "$new/root.img"
rm -rf --one-file-system "$new/root"
ln "$base/vmlinuz" "$base/initrd.img" "$new"
# A later run trusts a directory with this name, so it must be complete even after a power failure.
sync --file-system "$new"

rm -rf --one-file-system "$cache"/node-*
mv "$new" "$node"
echo "$node"
