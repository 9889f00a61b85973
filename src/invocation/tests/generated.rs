//! Checks the properties for generated command lines and for those of the tables.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use proptest::prelude::*;

use super::super::properties;
use super::{DelegateKind, argv, table_rows};

/// Generates arguments that often reach the interesting branches.
fn argument() -> impl Strategy<Value = OsString> {
    let words = prop::sample::select(vec![
        "--",
        "-",
        "",
        "create",
        "run",
        "x",
        "A",
        "-b",
        "--bundle",
        "--bundle=A",
        "-bA",
        "-b=A",
        "-dp",
        "-sl",
        "-d",
        "--no-pivot",
        "--pid-file",
        "--root",
        "--root=r",
        "--debug=zz",
        "--debug",
        "--help",
        "--help=false",
        "--config",
        "-fA",
        "--frob",
    ]);
    prop_oneof![
        4 => words.prop_map(OsString::from),
        4 => "[-a-z= ]{0,6}".prop_map(OsString::from),
        1 => prop::collection::vec(any::<u8>(), 0..8)
            .prop_map(|bytes| OsStr::from_bytes(&bytes).to_owned()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8192))]

    #[test]
    fn properties_hold_for_generated_command_lines(
        front in prop::collection::vec(argument(), 0..3),
        verb in prop::sample::select(vec!["create", "run", "restore", "update", "state"]),
        arguments in prop::collection::vec(argument(), 0..6),
    ) {
        let mut argv = argv(&[]);
        argv.extend(front);
        argv.push(verb.into());
        argv.extend(arguments);
        for kind in DelegateKind::ALL {
            properties::check(kind, &argv);
        }
    }
}

#[test]
fn properties_hold_for_every_row_of_the_tables() {
    for arguments in table_rows() {
        let mut argv = argv(&[]);
        argv.extend(arguments);
        for kind in DelegateKind::ALL {
            properties::check(kind, &argv);
        }
    }
}
