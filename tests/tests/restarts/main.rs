//! `crustlet` killed and started anew (KEP-3756): at each call to a driver or to the container runtime, with what
//! can't be told on the disk, with manifests, drivers and a runtime that come late.

mod again;
mod drivers;
mod late;
mod life;
mod moments;
mod old_order;
mod reconstruction;
mod row;
mod scene;
