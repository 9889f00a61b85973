#!/bin/sh
# Fills the context of crust-csi's image, with Debian's packages as this host's apt knows them:
# sh context.sh PROGRAMS CONTEXT
set -eu

here=$(dirname "$0")
# What crust-csi runs: blkid and fsck, and each file system's own.
packages=util-linux,e2fsprogs,xfsprogs,btrfs-progs

# Without a package manager: the image is built anew, and not changed.
sh "$here/../../../vm-image/debian.sh" "$2/debian.tar" host "$packages" \
    --format=tar --variant=essential \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*'
install -m 0755 "$1/crust-csi" "$2"
