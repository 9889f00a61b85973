#!/bin/sh
# Builds what is released twice, in two directories with a cargo home each, from the last commit:
#
#   sh deploy/reproducible.sh DIRECTORY
#
# Fails, with the difference, where they aren't the same bytes.
set -eu

directory=$1
root=$(dirname "$0")/..

rm -rf --one-file-system "$directory"
for place in one another/place; do
    mkdir -p "$directory/$place/cargo"
    git clone --quiet --no-hardlinks "$(git -C "$root" rev-parse --absolute-git-dir)" "$directory/$place/src"
    git -C "$directory/$place/src" checkout --quiet "$(git -C "$root" rev-parse HEAD)"
    (
        # Neither this build's flags nor its jobserver.
        unset MAKEFLAGS MAKELEVEL MFLAGS SOURCE_DATE_EPOCH RUSTFLAGS_RELEASE
        CARGO_HOME=$directory/$place/cargo make --directory "$directory/$place/src" dist
    )
done
diff "$directory/one/src/target/dist/SHA256SUMS" "$directory/another/place/src/target/dist/SHA256SUMS"
echo 'both are the same'
rm -rf --one-file-system "$directory"
