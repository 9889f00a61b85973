#!/bin/sh
# Makes the root file system of a Debian release with the packages of a list, once:
#
#   sh vm-image/base.sh CACHE RELEASE LIST [OPTION…]
#
# OPTIONs are mmdebstrap's. Prints the directory below CACHE that holds it: root, a directory, and where
# the list has a kernel, vmlinuz and initrd.img. Its name has the digest of the packages and the archives they come from; while
# these stay the same, so does it, whatever the archives have since: remove the directory for newer
# packages. A directory of another digest, for the same release, is removed.
set -eu

cache=$1 release=$2 list=$3
shift 3
here=$(dirname "$0")

key=$({
    dpkg --print-architecture
    echo "$*"
    cat "$0" "$here/debian.sh" "$list"
    sh "$here/debian.sh" --sources "$release"
} | sha256sum | cut -c 1-16)
base=$cache/$release-$key

# Under its name it is whole.
if [ -d "$base" ]; then
    echo "$base"
    exit
fi

mkdir -p "$cache"
new=$(mktemp --directory "$cache/new.XXXXXX")
trap 'rm -rf --one-file-system "$new"' EXIT
trap 'exit 1' HUP INT TERM

packages=$(sed 's/#.*//' "$list" | xargs | tr ' ' ,)
sh "$here/debian.sh" "$new/root" "$release" "$packages" \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    --dpkgopt='path-exclude=/usr/share/man/*' "$@"

# The kernel's own names carry its version.
for file in "$new"/root/boot/vmlinuz-* "$new"/root/boot/initrd.img-*; do
    if [ -e "$file" ]; then
        name=${file##*/}
        mv "$file" "$new/${name%%-*}"
    fi
done
# A later run trusts a directory with this name: it has to be whole after a power cut, too.
sync --file-system "$new"

# base-*: how such directories were named before there were releases.
rm -rf --one-file-system "$cache/$release"-* "$cache"/base-*
mv "$new" "$base"
echo "$base"
