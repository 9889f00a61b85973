#!/bin/sh
# Builds the fuzz targets, runs each for a time, as many at once as there are processors, and says in a
# line for each what came of it:
#
#   sh fuzz/run.sh SECONDS [TARGET]
#
# In target/fuzz/ stay, for each target, the inputs that reach new code, for the next time (corpus/), those
# that break a property (found/), and libFuzzer's own words (log/). Fails where there is something in the second.
set -eu

cd "$(dirname "$0")/.."
place=$PWD/target/fuzz
host=$(rustc -vV | sed -n 's/^host: //p')

build() {
    # Neither sanitizers nor coverage are stable features of the compiler's. The profile is that of
    # releases, without what makes it slow to build.
    RUSTC_BOOTSTRAP=1 CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_STRIP=none \
        cargo fuzz build --fuzz-dir fuzz --features libfuzzer --sanitizer "${FUZZ_SANITIZER:-address}" \
        --codegen-units 16 --target-dir "$place/build" "$@"
}

# One target.
run() {
    target=$1
    corpus=$place/corpus/$target found=$place/found/$target log=$place/log/$target
    dictionary=fuzz/dictionaries/$target
    mkdir -p "$corpus" "$found" "$place/log"
    set -- -max_total_time="$FUZZ_SECONDS" -timeout=10 -print_final_stats=1 -artifact_prefix="$found/"
    [ ! -e "$dictionary" ] || set -- "$@" -dict="$dictionary"
    status=0
    "$place/build/$host/release/$target" "$@" "$corpus" "fuzz/seeds/$target" >"$log" 2>&1 || status=$?
    executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    covered=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$log" | tail -n 1)
    said="$target: ${executions:-no} executions, ${covered:-no} edges covered"
    if [ "$status" -eq 0 ]; then
        echo "$said, nothing found"
        return
    fi
    input=$(sed -n 's/.*Test unit written to //p' "$log" | tail -n 1)
    echo "$said, found: ${input:-see $log}"
    sed -n '/panicked at/,/^stack backtrace:/p; /^SUMMARY: /p' "$log" | grep -v '^stack backtrace:' | head -n 12
    if [ -n "$input" ]; then
        echo "  again, as a test: cp $input fuzz/seeds/$target/NAME && cargo test --package runcrust-fuzz $target"
    fi
    return 1
}

if [ "$1" = --run ]; then
    run "$2"
    exit
fi
export FUZZ_SECONDS="$1"
shift
build "$@"
if [ $# -eq 0 ]; then ls fuzz/seeds; else echo "$1"; fi | xargs -P "$(nproc)" -I '{}' sh fuzz/run.sh --run '{}'
