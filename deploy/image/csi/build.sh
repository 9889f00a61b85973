#!/bin/sh
# Builds the image of crust-csi from the static program and Debian's packages, as this host's apt
# knows them; no registry of images is asked:
#
#   sh deploy/image/csi/build.sh DIRECTORY VERSION ARCHIVE
#
# ARCHIVE is what `podman load`, `docker load` and `ctr --namespace k8s.io images import` take; the
# image in it is localhost/crust-csi:VERSION.
set -eu

programs=$1 version=$2 archive=$3
here=$(dirname "$0")
# What crust-csi runs: blkid and fsck, and each file system's own.
packages=util-linux,e2fsprogs,xfsprogs,btrfs-progs

mkdir -p "$(dirname "$archive")"
rm -f "$archive"
# Storage of its own: nothing of the user's is touched, and nothing is left.
scratch=$(mktemp --directory "$archive.XXXXXX")
trap 'rm -rf --one-file-system "$scratch"' EXIT
trap 'exit 1' HUP INT TERM
podman() {
    command podman --root "$scratch/root" --runroot "$scratch/run" --storage-driver vfs "$@"
}

mkdir "$scratch/context"
# Without a package manager: the image is built anew, and not changed.
sh "$here/../../../vm-image/debian.sh" "$scratch/context/debian.tar" host "$packages" \
    --format=tar --variant=essential \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*'
install -m 0755 "$programs/crust-csi" "$scratch/context"
podman build --quiet --isolation chroot --timestamp 0 --file "$here/Containerfile" \
    --tag "localhost/crust-csi:$version" "$scratch/context" >/dev/null
podman save --quiet --format docker-archive --output "$archive" "localhost/crust-csi:$version" >/dev/null
echo "$archive"
