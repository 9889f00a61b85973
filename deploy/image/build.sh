#!/bin/sh
# Builds an image from static programs, without a registry of images:
#
#   sh deploy/image/build.sh IMAGE DIRECTORY VERSION ARCHIVE
#
# IMAGE is `runcrust` (the DaemonSet's, the same from the same programs) or `crust-csi`. The directory of that name
# has its Containerfile and context.sh, which fills the context from the programs in DIRECTORY.
#
# ARCHIVE is what `podman load`, `docker load` and `ctr --namespace k8s.io images import` take; the
# image in it is localhost/IMAGE:VERSION.
set -eu

image=$1 programs=$2 version=$3 archive=$4
parts=$(dirname "$0")/$image

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
sh "$parts/context.sh" "$programs" "$scratch/context"
podman build --quiet --isolation chroot --timestamp 0 --file "$parts/Containerfile" \
    --tag "localhost/$image:$version" "$scratch/context" >/dev/null
podman save --quiet --format docker-archive --output "$archive" "localhost/$image:$version" >/dev/null
echo "$archive"
