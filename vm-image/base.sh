#!/bin/sh
# Makes the lower layer of the node's root file system, from the Debian packages that this host's apt
# knows:
#
#   sh vm-image/base.sh CACHE
#
# Prints the directory below CACHE that holds root (a directory), vmlinuz and initrd.img. Its name is
# the digest of which packages and archives they were made from; while that stays the same, so do they,
# whatever the archives have since: remove the directory for newer packages.
set -eu

cache=$1
here=$(dirname "$0")

# shellcheck disable=SC2046 # names without blanks
key=$({
    dpkg --print-architecture
    cat "$0" "$here/debian.sh" "$here/packages" $(sh "$here/debian.sh" --lists)
} | sha256sum | cut -c 1-16)
base=$cache/base-$key

# Under its name it is whole.
if [ -d "$base" ]; then
    echo "$base"
    exit
fi

new=$(mktemp --directory "$cache/new.XXXXXX")
trap 'rm -rf --one-file-system "$new"' EXIT
trap 'exit 1' HUP INT TERM

packages=$(sed 's/#.*//' "$here/packages" | xargs | tr ' ' ,)
sh "$here/debian.sh" "$new/root" "$packages" \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    --dpkgopt='path-exclude=/usr/share/man/*'

# The kernel's own names carry its version.
mv "$new"/root/boot/vmlinuz-* "$new/vmlinuz"
mv "$new"/root/boot/initrd.img-* "$new/initrd.img"
# The name is believed by all later runs.
sync --file-system "$new"

rm -rf --one-file-system "$cache"/base-*
mv "$new" "$base"
echo "$base"
