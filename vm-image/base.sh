#!/bin/sh
# Makes the lower layer of the node's root file system, from the Debian packages that this host's apt
# knows:
#
#   sh vm-image/base.sh CACHE
#
# Prints the directory below CACHE that holds root (a directory), vmlinuz and initrd.img. Its name is
# the digest of what they were made from; while that stays the same, so do they.
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

key=$(cat "$0" "$here/packages" "$@" | sha256sum | cut -c 1-16)
base=$cache/base-$key

# Under its name it is whole.
if [ -d "$base" ]; then
    echo "$base"
    exit
fi

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
    '' "$new/root" "$@" >&2

# The kernel's own names carry its version.
mv "$new"/root/boot/vmlinuz-* "$new/vmlinuz"
mv "$new"/root/boot/initrd.img-* "$new/initrd.img"
rm "$new/apt.conf"
# The name is believed by all later runs.
sync --file-system "$new"

rm -rf --one-file-system "$cache"/base-*
mv "$new" "$base"
echo "$base"
