#!/bin/sh
# What `make engines` does: runs suites with the container engines of another Debian release:
#
#   sh tests/engines/run.sh CACHE RELEASE PROGRAMS [ARGUMENT…]
#
# PROGRAMS is the directory of the programs to test; ARGUMENTs are nextest's. CACHE keeps the release's root
# file system, and nothing that the tests write.
set -eu

cache=$1 release=$2
here=$(dirname "$0")
# shellcheck source=tests/contained.sh
. "$here/../contained.sh"

if [ "$release" = bookworm ]; then
    echo "$0: bookworm (Debian 12) lacks packages of $here/packages; \`make test\` on a Debian 12 tests its engines" >&2
    exit 64
fi

mkdir -p "$cache"
# One run at a time. Only this script has the lock open, so that nothing holds it for longer.
exec 9>"$cache/lock"
if ! flock --nonblock 9; then
    echo "$0: waiting for another run in $cache" >&2
    flock 9
fi
trap end_contained EXIT
trap 'exit 1' HUP INT TERM
# Left behind by runs that were killed.
rm -rf --one-file-system "$cache"/new.*
contained sh "$here/inside.sh" "$@" 9>&-
