#!/bin/sh
# Builds the files of a release, with their SHA256SUMS:
#
#   sh deploy/dist.sh TREE LICENSES PACKAGES NAME OUT
#
# TREE is what `make install` installed below its PREFIX, LICENSES a file with the licences of the crates that are
# linked in, and PACKAGES the directory of the Debian packages. NAME is the name of the archive, and of the directory in
# it.
set -eu

tree=$1 licenses=$2 packages=$3 name=$4 out=$5
root=$(dirname "$0")/..

umask 022
rm -rf --one-file-system "$out"
mkdir -p "$out"
scratch=$(mktemp --directory "$out/new.XXXXXX")
trap 'rm -rf --one-file-system "$scratch"' EXIT
trap 'exit 1' HUP INT TERM

cp --recursive "$tree" "$scratch/$name"
for file in LICENSE README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md; do
    cp "$root/$file" "$scratch/$name"
done
cp "$licenses" "$scratch/$name/THIRD-PARTY-LICENSES"
# The files that README.md links to. `etc` has examples, which are not installed.
mkdir -p "$scratch/$name/deploy" "$scratch/$name/crates/proto"
cp -R "$root/deploy/etc" "$root/deploy/kubernetes" "$scratch/$name/deploy"
cp -R "$root/docs" "$scratch/$name"
cp -R "$root/crates/proto/proto" "$scratch/$name/crates/proto"
tar --create --directory "$scratch" --sort=name --format=gnu --mode=go=rX,u+rw,a-s \
    --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner "$name" |
    gzip -9 --no-name >"$out/$name.tar.gz"
cp "$packages"/*.deb "$out"
chmod 0644 "$out"/*.*
(cd "$out" && sha256sum -- *.tar.gz *.deb >SHA256SUMS)
cat "$out/SHA256SUMS"
