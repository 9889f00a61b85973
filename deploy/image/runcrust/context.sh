#!/bin/sh
# Fills the context of the DaemonSet's image: sh context.sh PROGRAMS CONTEXT
set -eu

for program in runcrust crust-mount-hook crust_ops; do
    install -m 0755 "$1/$program" "$2"
done
