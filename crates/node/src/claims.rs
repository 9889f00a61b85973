//! x

pub(crate) mod class;
