#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| runcrust_fuzz::generated_config(bytes));
