#!/bin/sh
# Builds the disk that the guest takes its tests from:
#
#   sh vm-image/payload.sh IMAGE ARCHIVE NEXTEST PROGRAMS PACKAGE.deb…
#
# ARCHIVE is NEXTEST's, a program, of this workspace; the PACKAGEs are those that the node has installed,
# and PROGRAMS the directory that has those which are in none of them.
# VM_FILTER is a filterset of nextest's for tests to run in place of the profile's.
set -eu

image=$1 archive=$2 nextest=$3 programs=$4
shift 4
workspace=$(dirname "$0")/..

rm -f "$image"
payload=$(mktemp --directory "$image.XXXXXX")
trap 'rm -rf --one-file-system "$payload"' EXIT
trap 'exit 1' HUP INT TERM
mkdir "$payload/packages" "$payload/programs" "$payload/tests" "$payload/workspace"
cp "$@" "$payload/packages"
cp "$programs/crust-csi" "$programs/crustlet" "$payload/programs"
cp "$nextest" "$(dirname "$0")/guest/run" "$payload"
printf %s "${VM_FILTER-}" >"$payload/filter"
# Every package's tests are listed and run in its directory, as everywhere; some read what is deployed.
(cd "$workspace" && cp -R .config Cargo.toml Makefile benches crates deploy docs fuzz hooks manuals src testbed \
    tests "$payload/workspace")
# Unpacked here, where the processor is a real one, and without the debug information, which is
# nine tenths of it.
tar --zstd -xf "$archive" -C "$payload/tests"
find "$payload/cargo-nextest" "$payload/tests" -type f -perm -0100 -exec strip --strip-debug {} +
truncate --size 1G "$image"
mke2fs -q -t ext4 -d "$payload" "$image"
