#!/bin/sh
# Builds the root file system of a Debian release with the packages of a list, unless it exists:
#
#   sh vm-image/base.sh CACHE RELEASE LIST [OPTION…]
#
# OPTIONs are passed to mmdebstrap. Prints the directory below CACHE that contains the result: the directory `root`, and
# if the list has a kernel, vmlinuz and initrd.img.
#
# The name of the printed directory contains the digest of the list, of the scripts, and of the archives' addresses. It
# is used again as long as these are the same, even if the archives have newer packages: remove it to get those.
# Directories for the same release with another digest are removed.
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

# A directory with this name is complete.
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

# Without the kernel's version, which is part of the names.
for file in "$new"/root/boot/vmlinuz-* "$new"/root/boot/initrd.img-*; do
    if [ -e "$file" ]; then
        name=${file##*/}
        mv "$file" "$new/${name%%-*}"
    fi
done
# A later run trusts a directory with this name, so it must be complete even after a power failure.
sync --file-system "$new"

# base-* is an earlier name of such directories.
rm -rf --one-file-system "$cache/$release"-* "$cache"/base-*
mv "$new" "$base"
echo "$base"
