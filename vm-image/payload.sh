#!/bin/sh
# Builds the disk with the tests for the guest:
#
#   sh vm-image/payload.sh IMAGE ARCHIVE NEXTEST PROGRAMS PACKAGE.deb…
#
# NEXTEST is the program cargo-nextest, and ARCHIVE its archive of this workspace's tests. The PACKAGEs are those that
# are installed on the node. PROGRAMS is a directory with crust-csi and crustlet, which are in no package. VM_FILTER is a
# filterset of nextest that replaces the one of the profile.
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
# nextest lists and runs the tests of a package in the package's directory. Some tests read files of deploy/ and docs/.
(cd "$workspace" && cp -R .config Cargo.toml Makefile README.md benches crates deploy docs fuzz hooks manuals src \
    testbed tests "$payload/workspace")
# Unpacked here, because the guest's emulated processor is slow, and without the debug information, which is nine tenths
# of the size.
tar --zstd -xf "$archive" -C "$payload/tests"
find "$payload/cargo-nextest" "$payload/tests" -type f -perm -0100 -exec strip --strip-debug {} +
truncate --size 1G "$image"
mke2fs -q -t ext4 -d "$payload" "$image"
