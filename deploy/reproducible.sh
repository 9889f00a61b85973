#!/bin/sh
# Builds the release of the last commit twice, in two directories with a cargo home each, and compares the files:
#
#   sh deploy/reproducible.sh DIRECTORY
#
# If they differ, it prints the difference of the two SHA256SUMS and fails.
set -eu

directory=$1
root=$(dirname "$0")/..

rm -rf --one-file-system "$directory"
for place in one another/place; do
    mkdir -p "$directory/$place/cargo"
    git clone --quiet --no-hardlinks "$(git -C "$root" rev-parse --absolute-git-dir)" "$directory/$place/src"
    git -C "$directory/$place/src" checkout --quiet "$(git -C "$root" rev-parse HEAD)"
    (
        # The builds must not inherit flags and the jobserver of the make that runs this script.
        unset MAKEFLAGS MAKELEVEL MFLAGS SOURCE_DATE_EPOCH RUSTFLAGS_RELEASE
        CARGO_HOME=$directory/$place/cargo make --directory "$directory/$place/src" dist
    )
done
diff "$directory/one/src/target/dist/SHA256SUMS" "$directory/another/place/src/target/dist/SHA256SUMS"
echo 'both builds are identical'
rm -rf --one-file-system "$directory"
