//! What a kubelet decides about deferred mounts (KEP-2857, 3756, 2485, 2317), on one node and without an API
//! server. Nothing is done here: all of it is functions of what people wrote, and of what there is.
//!
//! | room | what is there |
//! |---|---|
//! | [`objects`] | what people write: pods, claims, volumes, classes, drivers |
//! | [`volumes`] | what is wanted of volumes, what there is, and the next step from one to the other |
//! | [`csi`] | what a driver is asked, by what it can do |

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::disallowed_methods))]

pub mod csi;
pub mod objects;
pub mod volumes;
