//! What is refused: a create that can't give a container its deferred volume gives it nothing,
//! says why in one sentence, and leaves no trace.

mod configuration;
mod entries;
mod lost;
mod mount_info;
mod other_disk;
mod sentences;
mod strangers;

use runcrust_tests::refusal;
