#!/bin/sh
# Runs suites with the container engines of another Debian release, for `make engines`:
#
#   sh tests/engines/run.sh CACHE RELEASE PROGRAMS [ARGUMENT…]
#
# PROGRAMS is the directory of the programs to test. ARGUMENTs are passed to nextest. The root file system of the
# release is kept in CACHE; what the tests write is not.
set -eu

cache=$1 release=$2
here=$(dirname "$0")
# shellcheck source=tests/contained.sh
. "$here/../contained.sh"

if [ "$release" = bookworm ]; then
    echo "$0: bookworm (Debian 12) lacks packages of $here/packages: run \`make test\` on a Debian 12 to test its engines" >&2
    exit 64
fi

mkdir -p "$cache"
# One run at a time. Only this script has the lock open, so no other process keeps it locked afterwards.
exec 9>"$cache/lock"
if ! flock --nonblock 9; then
    echo "$0: waiting for another run, which uses $cache" >&2
    flock 9
fi
trap end_contained EXIT
trap 'exit 1' HUP INT TERM
# Directories that killed runs left behind.
rm -rf --one-file-system "$cache"/new.*
contained sh "$here/inside.sh" "$@" 9>&-
