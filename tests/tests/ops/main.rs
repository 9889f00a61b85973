//! `crust_ops`, by its sockets: a generated client against the built daemon.

mod life;

use tonic::{Code, Status};

/// Of a call that has to fail.
#[track_caller]
fn refused<T: std::fmt::Debug>(call: Result<T, Status>, code: Code) -> String {
    let status = call.expect_err("it should have failed");
    assert_eq!(status.code(), code, "{status}");
    status.message().to_owned()
}
