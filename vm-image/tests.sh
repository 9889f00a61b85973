#!/bin/sh
# Says in one line how many tests there are, and how many of them the guest runs:
#
#   sh vm-image/tests.sh
#
# What nextest counts as skipped is without the test programs that the profile leaves out as a whole.
# Fails where a test that is ignored on the host isn't run in the guest either.
set -eu

# The tests that a filterset selects, one a line.
list() {
    cargo nextest list --locked --workspace --cargo-quiet --profile vm --ignore-default-filter \
        --message-format oneline --run-ignored "$1" --filterset "$2"
}

count() {
    printf %s "$1" | grep -c '' || true
}

# Run nowhere, but by hand: a delegate that Debian hasn't.
by_hand='test(a_delegate_that_has_pivoted_already)'
forgotten=$(list only "not (default() | $by_hand)")
if [ -n "$forgotten" ]; then
    echo "$0: ignored, and not in the profile vm of .config/nextest.toml, so run nowhere:" >&2
    echo "$forgotten" >&2
    exit 1
fi
all=$(list all 'all()')
run=$(list all "${VM_FILTER:-default()}")
all=$(count "$all") run=$(count "$run")
echo "$all tests: $run of them are run in the guest, $((all - run)) are left out"
