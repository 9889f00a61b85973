#!/bin/sh
# Makes the root file system of a Debian release, a directory, of the essential packages and others:
#
#   sh vm-image/debian.sh ROOT RELEASE PACKAGE,… [OPTION…]
#   sh vm-image/debian.sh --sources RELEASE
#
# RELEASE is a codename (bookworm, trixie, sid), or `host` for this host's own release. The packages
# come from the mirrors that this host's apt uses for its own release. OPTIONs are mmdebstrap's.
# --sources prints the archives, in the format of sources.list(5).
set -eu

sources() {
    # shellcheck source=/dev/null # os-release(5)
    codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
    release=$1
    if [ "$release" = host ]; then
        release=$codename
    fi
    # apt knows what its sources have once it has read them.
    if [ -z "$(apt-get indextargets 'Identifier: Packages')" ]; then
        apt-get update -qq >&2
    fi
    # Where the host has security and updates, so has the other release; sid has neither. RELEASE would be what
    # the host's sources say, which may be `stable`.
    # shellcheck disable=SC2016 # the variables are apt's
    apt-get indextargets --format '$(REPO_URI) $(CODENAME) $(COMPONENT)' 'Identifier: Packages' |
        awk -v from="$codename" -v to="$release" '
            $2 == from || (index($2, from "-") == 1 && to != "sid") {
                sub("^" from, to, $2)
                print "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]", $0
            }' | sort -u
}

if [ "$1" = --sources ]; then
    sources "$2"
    exit
fi

root=$1 release=$2 packages=$3
shift 3
configuration=$(mktemp)
lists=$(mktemp --suffix .list)
trap 'rm -f "$configuration" "$lists"' EXIT
trap 'exit 1' HUP INT TERM
sources "$release" >"$lists"
if [ ! -s "$lists" ]; then
    echo "$0: apt has no mirror of Debian's archive: see apt-get indextargets" >&2
    exit 1
fi
# A proxy, a snapshot's old dates.
apt-config dump Acquire | grep -v IndexTargets >"$configuration"
# sid is signed for a week, and a mirror that is kept at a date has older lists.
if [ "$release" = sid ]; then
    echo 'Acquire::Check-Valid-Until "false";' >>"$configuration"
fi
# mmdebstrap mounts /proc, /sys and devices in the root: in a mount namespace of its own they go with it, and
# never keep the root from being removed. Nothing of it outlives this script.
setpriv --pdeathsig KILL unshare --mount --propagation private --pid --fork --kill-child \
    mmdebstrap --quiet --mode=root --variant=minbase --format=directory --include="$packages" \
    --aptopt="$configuration" --aptopt='APT::Sandbox::User "root"' "$@" '' "$root" "$lists" >&2
