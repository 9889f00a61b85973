#!/bin/sh
# Runs targets of the Makefile in a minimal Debian, on a clone of the last commit:
#
#   sh tests/bare.sh DIRECTORY TARGET…
#
# The root file system contains Debian's essential packages, make, and this host's Rust toolchain. It is built below
# DIRECTORY, from the archives that are configured for this host's apt, and is removed at the end.
set -eu

directory=$1
shift
targets=$*
workspace=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=tests/contained.sh
. "$workspace/tests/contained.sh"

mkdir -p "$directory"
bare=$(mktemp --directory "$directory/bare.XXXXXX")
root=$bare/root
trap 'end_contained; rm -rf --one-file-system "$bare"' EXIT
trap 'exit 1' HUP INT TERM

sh "$workspace/vm-image/debian.sh" "$root" host make,ca-certificates

# The programs of the toolchain only, without downloaded crates and installed cargo tools.
mkdir -p "$root/root/.cargo/bin"
for program in cargo rustc rustup cargo-fmt cargo-clippy rustfmt clippy-driver; do
    cp --no-dereference "$(dirname "$(command -v cargo)")/$program" "$root/root/.cargo/bin"
done
cp -R "${RUSTUP_HOME:-$HOME/.rustup}" "$root/root/.rustup"
# This host's certificate authorities and name resolution.
cp --dereference /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
cp --dereference /etc/resolv.conf /etc/hosts "$root/etc"
git clone --quiet "$workspace" "$bare/runcrust"

# shellcheck disable=SC2086 # a list of targets
contained sh "$workspace/tests/enter-root.sh" "$root" "$bare/runcrust" \
    env -i HOME=/root TERM="${TERM-dumb}" PATH=/root/.cargo/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt make $targets
