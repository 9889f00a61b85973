#!/bin/sh
# Builds the fuzz targets, runs each of them for SECONDS, one per processor at a time, and prints a line with the result
# of each:
#
#   sh fuzz/run.sh SECONDS [TARGET]
#
# For each target, target/fuzz/ keeps the inputs that reach new code, which the next run starts from (corpus/), the
# inputs that break a property (found/), and libFuzzer's log (log/). Fails if a target finds an input that breaks a
# property.
set -eu

cd "$(dirname "$0")/.."
output=$PWD/target/fuzz
host=$(rustc -vV | sed -n 's/^host: //p')

build() {
    # RUSTC_BOOTSTRAP: sanitizers and coverage are unstable features of the compiler. The profile is `release` without
    # the settings that make the build slow.
    RUSTC_BOOTSTRAP=1 CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_STRIP=none \
        cargo fuzz build --fuzz-dir fuzz --features libfuzzer --sanitizer "${FUZZ_SANITIZER:-address}" \
        --codegen-units 16 --target-dir "$output/build" "$@"
}

# Runs one target.
run() {
    target=$1
    corpus=$output/corpus/$target found=$output/found/$target log=$output/log/$target
    dictionary=fuzz/dictionaries/$target
    mkdir -p "$corpus" "$found" "$output/log"
    set -- -max_total_time="$FUZZ_SECONDS" -timeout=10 -print_final_stats=1 -artifact_prefix="$found/"
    [ ! -e "$dictionary" ] || set -- "$@" -dict="$dictionary"
    status=0
    "$output/build/$host/release/$target" "$@" "$corpus" "fuzz/seeds/$target" >"$log" 2>&1 || status=$?
    executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    covered=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$log" | tail -n 1)
    summary="$target: ${executions:-no} executions, ${covered:-no} edges covered"
    if [ "$status" -eq 0 ]; then
        echo "$summary, nothing found"
        return
    fi
    input=$(sed -n 's/.*Test unit written to //p' "$log" | tail -n 1)
    echo "$summary, found: ${input:-see $log}"
    sed -n '/panicked at/,/^stack backtrace:/p; /^SUMMARY: /p' "$log" | grep -v '^stack backtrace:' | head -n 12
    if [ -n "$input" ]; then
        echo "  to reproduce it in a test:" \
            "cp $input fuzz/seeds/$target/NAME && cargo test --package runcrust-fuzz $target"
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
