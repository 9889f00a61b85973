#!/bin/sh
# Fills the build context of the image of runcrust's DaemonSet:
#
#   sh context.sh PROGRAMS CONTEXT
set -eu

for program in runcrust crust-mount-hook crust_ops; do
    install -m 0755 "$1/$program" "$2"
done
