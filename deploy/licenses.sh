#!/bin/sh
# Prints the licences of the crates that the programs are linked with, with their texts:
#
#   sh deploy/licenses.sh TARGET
set -eu

cargo=${CARGO_HOME:-$HOME/.cargo}

echo 'The programs are linked with the standard library of Rust (MIT OR Apache-2.0), if they are static with musl (MIT)
or glibc (LGPL-2.1-or-later), and with these crates:'
cargo tree --locked --target "$1" --edges normal --prefix none --format '{p}|{l}' \
    --package runcrust --package crust-mount-hook --package crust-ops --package crust-csi \
    --package crustlet |
    sed -e 's/ (proc-macro)//' -e '/ (\//d' -e '/^$/d' -e 's/ (\*)$//' | LC_ALL=C sort -u |
    while IFS='|' read -r crate license; do
        printf '\n==== %s: %s\n' "$crate" "$license"
        for text in "$cargo/registry/src"/*/"${crate% v*}-${crate#* v}"/LICEN[CS]E* \
            "$cargo/registry/src"/*/"${crate% v*}-${crate#* v}"/COPYING*; do
            if [ -f "$text" ]; then
                echo
                cat "$text"
            fi
        done
    done
