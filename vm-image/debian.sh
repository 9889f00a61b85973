#!/bin/sh
# Makes the root file system of a Debian, a directory, of the essential packages and others:
#
#   sh vm-image/debian.sh ROOT PACKAGE,… [OPTION…]
#   sh vm-image/debian.sh --lists
#
# From the archives that this host's apt knows, as it reaches them; OPTIONs are mmdebstrap's. --lists
# prints the files that name the archives.
set -eu

lists() {
    for list in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; do
        if [ -s "$list" ]; then
            echo "$list"
        fi
    done
}

if [ "$1" = --lists ]; then
    lists
    exit
fi

root=$1 packages=$2
shift 2
# A proxy, a snapshot's old dates.
configuration=$(mktemp)
trap 'rm -f "$configuration"' EXIT
trap 'exit 1' HUP INT TERM
apt-config dump Acquire | grep -v IndexTargets >"$configuration"
# mmdebstrap reads lists of both formats.
# shellcheck disable=SC2046 # names without blanks
mmdebstrap --quiet --mode=root --variant=minbase --format=directory --include="$packages" \
    --aptopt="$configuration" --aptopt='APT::Sandbox::User "root"' "$@" '' "$root" $(lists) >&2
