#!/bin/sh
# Builds the DaemonSet's image from static programs, the same from the same ones:
#
#   sh deploy/image/build.sh DIRECTORY VERSION ARCHIVE
#
# ARCHIVE is what `podman load`, `docker load` and `ctr --namespace k8s.io images import` take; the
# image in it is localhost/runcrust:VERSION.
set -eu

programs=$1 version=$2 archive=$3
here=$(dirname "$0")

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
for program in runcrust crust-mount-hook crust_ops; do
    install -m 0755 "$programs/$program" "$scratch/context"
done
podman build --quiet --isolation chroot --timestamp 0 --file "$here/Containerfile" \
    --tag "localhost/runcrust:$version" "$scratch/context" >/dev/null
podman save --quiet --format docker-archive --output "$archive" "localhost/runcrust:$version" >/dev/null
echo "$archive"
