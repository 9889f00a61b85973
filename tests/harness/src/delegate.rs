//! The two OCI runtimes that do the work.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

/// An OCI runtime. `RUNC` and `CRUN` in the environment name other builds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Delegate {
    Runc,
    Crun,
}

impl Delegate {
    /// Returns the absolute path of the program.
    pub fn program(self) -> PathBuf {
        let (variable, installed) = match self {
            Self::Runc => ("RUNC", "/usr/sbin/runc"),
            Self::Crun => ("CRUN", "/usr/bin/crun"),
        };
        std::env::var_os(variable)
            .unwrap_or_else(|| OsString::from(installed))
            .into()
    }

    /// Returns the lower-case name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Runc => "runc",
            Self::Crun => "crun",
        }
    }
}

impl fmt::Display for Delegate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Makes two tests of each function, `<name>::runc` and `<name>::crun`, so that `cargo nextest run -E
/// 'test(/::crun$/)'` selects by delegate.
///
/// ```text
/// on_each_delegate! {
///     fn a_container_starts(delegate: Delegate) { … }
/// }
/// ```
#[macro_export]
macro_rules! on_each_delegate {
    ($($(#[$attribute:meta])* fn $name:ident($delegate:ident: Delegate) $body:block)+) => {$(
        mod $name {
            #[allow(unused_imports, clippy::wildcard_imports)]
            use super::*;

            fn check($delegate: $crate::Delegate) $body

            $(#[$attribute])*
            #[test]
            fn runc() {
                check($crate::Delegate::Runc);
            }

            $(#[$attribute])*
            #[test]
            fn crun() {
                check($crate::Delegate::Crun);
            }
        }
    )+};
}

/// Makes tests of each function for every file system except ext4, which all other suites use: `<name>::xfs::runc`, ….
///
/// ```text
/// on_each_file_system! {
///     fn a_volume_is_mounted(delegate: Delegate, fstype: &'static str) { … }
/// }
/// ```
#[macro_export]
macro_rules! on_each_file_system {
    ($($(#[$attribute:meta])* fn $name:ident($delegate:ident: Delegate, $fstype:ident: &'static str) $body:block)+) => {$(
        mod $name {
            #[allow(unused_imports, clippy::wildcard_imports)]
            use super::*;

            $(#[$attribute])*
            fn on($delegate: $crate::Delegate, $fstype: &'static str) $body

            $crate::on_each_file_system!(@ ext3 xfs btrfs);
        }
    )+};
    (@ $($fstype:ident)+) => {$(
        mod $fstype {
            #[test]
            fn runc() {
                super::on($crate::Delegate::Runc, stringify!($fstype));
            }

            #[test]
            fn crun() {
                super::on($crate::Delegate::Crun, stringify!($fstype));
            }
        }
    )+};
}
