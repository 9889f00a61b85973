#!/bin/sh
# Builds a container image from static programs, without a registry:
#
#   sh deploy/image/build.sh IMAGE DIRECTORY VERSION ARCHIVE
#
# IMAGE is `runcrust` or `crust-csi`. The directory of that name has the Containerfile, and context.sh, which fills the
# build context with programs from DIRECTORY. The same programs give the same image of `runcrust`.
#
# ARCHIVE contains the image localhost/IMAGE:VERSION, for `podman load`, `docker load`, or
# `ctr --namespace k8s.io images import`.
set -eu

image=$1 programs=$2 version=$3 archive=$4
parts=$(dirname "$0")/$image

mkdir -p "$(dirname "$archive")"
rm -f "$archive"
# With a storage of its own, so that the user's images are not changed, and nothing is left.
scratch=$(mktemp --directory "$archive.XXXXXX")
# podman refuses a path of more than 50 characters.
runroot=$(mktemp --directory /tmp/image.XXXXXX)
trap 'rm -rf --one-file-system "$scratch" "$runroot"' EXIT
trap 'exit 1' HUP INT TERM
podman() {
    command podman --root "$scratch/root" --runroot "$runroot" --storage-driver vfs "$@"
}

mkdir "$scratch/context"
sh "$parts/context.sh" "$programs" "$scratch/context"
podman build --quiet --isolation chroot --timestamp 0 --file "$parts/Containerfile" \
    --tag "localhost/$image:$version" "$scratch/context" >/dev/null
podman save --quiet --format docker-archive --output "$archive" "localhost/$image:$version" >/dev/null
echo "$archive"
