//! `crustlet` on a whole node: the stories of KEP-2857 and of its earlier draft, KEP-2485's access modes, KEP-2317's
//! groups. containerd, runcrust, crust-csi and `crust_ops` are real, and so are the pods.

mod changes;
mod claims;
mod cli;
mod draft;
mod gates;
mod groups;
mod health;
mod lives;
mod modes;
mod numbers;
mod owners;
mod recreated_pods;
mod scene;
mod stories;
mod volumes;
