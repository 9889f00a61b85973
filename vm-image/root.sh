#!/bin/sh
# Builds the guest's root file system from the Debian packages that this host's apt knows:
#
#   sh vm-image/root.sh CACHE
#
# Prints the directory below CACHE that holds root.img, vmlinuz and initrd.img. Its name is the
# digest of what they were made from; while that stays the same, so do they.
set -eu

cache=$1
here=$(dirname "$0")

# mmdebstrap reads lists of both formats.
set --
for list in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; do
    if [ -s "$list" ]; then
        set -- "$@" "$list"
    fi
done

key=$(cat "$0" "$here/packages" "$here/guest/init" "$@" | sha256sum | cut -c 1-16)
root=$cache/root-$key

mkdir -p "$cache"
# One at a time; the second finds what the first has made.
exec 8>"$cache/root.lock"
flock 8
if [ -s "$root/root.img" ] && [ -s "$root/vmlinuz" ] && [ -s "$root/initrd.img" ]; then
    echo "$root"
    exit
fi

# Of runs that were killed.
rm -rf --one-file-system "$cache"/new.*
new=$(mktemp --directory "$cache/new.XXXXXX")
trap 'rm -rf --one-file-system "$new"' EXIT
trap 'exit 1' HUP INT TERM

# How this host's apt reaches its archives (a proxy, a snapshot's old dates) holds for the guest's.
apt-config dump Acquire | grep -v IndexTargets >"$new/apt.conf"

packages=$(sed 's/#.*//' "$here/packages" | xargs | tr ' ' ,)
mmdebstrap --quiet --mode=root --variant=minbase --format=directory --include="$packages" \
    --aptopt="$new/apt.conf" --aptopt='APT::Sandbox::User "root"' \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    --dpkgopt='path-exclude=/usr/share/man/*' \
    --customize-hook="install -D -m 0755 '$here/guest/init' \"\$1/sbin/guest-init\"" \
    '' "$new/root" "$@" >&2

# The kernel's own names carry its version.
cp "$new"/root/boot/vmlinuz-* "$new/vmlinuz"
cp "$new"/root/boot/initrd.img-* "$new/initrd.img"
truncate --size 4G "$new/root.img"
mke2fs -q -t ext4 -d "$new/root" "$new/root.img"
rm -rf --one-file-system "$new/root" "$new/apt.conf"
# The name is believed by all later runs.
sync "$new"/* "$new"

rm -rf --one-file-system "$cache"/root-*
mv "$new" "$root"
echo "$root"
