//! `crustlet` is killed and started again (KEP-3756): at each call to a driver or to the container runtime, with
//! records on the disk that are damaged, and with manifests, drivers and a runtime that become available late.

mod crash_case;
mod delayed_sources;
mod drivers;
mod moments;
mod old_order;
mod reconstruction;
mod recreated_pods;
mod running_pods;
mod scene;
