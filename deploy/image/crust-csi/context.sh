#!/bin/sh
# Fills the build context of crust-csi's image, with Debian packages from the archives of this host's apt:
#
#   sh context.sh PROGRAMS CONTEXT
set -eu

here=$(dirname "$0")
# The programs that crust-csi runs: blkid and fsck, and those of each file system.
packages=util-linux,e2fsprogs,xfsprogs,btrfs-progs

# Without a package manager, because an image is rebuilt instead of being changed.
sh "$here/../../../vm-image/debian.sh" "$2/debian.tar" host "$packages" \
    --format=tar --variant=essential \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*'
install -m 0755 "$1/crust-csi" "$2"
