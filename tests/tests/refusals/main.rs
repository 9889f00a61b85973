//! Refused creates: if a container cannot get its deferred volume, the create fails with one sentence that says why,
//! and leaves no trace.

mod configuration;
mod entries;
mod lost;
mod mount_info;
mod other_disk;
mod sentences;
mod untrusted;

use runcrust_tests::refusal;
