//! Hostile `config.json` files that parsers understand differently: what the delegate does with them, and what happens
//! to a volume that they name.

mod ambiguous;
mod pass_through;
mod sizes;

use std::fs;
use std::path::PathBuf;

use runcrust_tests::volume::with_mounted;
use runcrust_tests::{Bundle, Container, Delegate, LoopDevice, Node, POD};
use serde_json::{Value, json};

/// A pod with a volume that contains a file, and a directory on the host that contains another.
struct Scene {
    target: PathBuf,
    host: PathBuf,
    sandbox: Container,
    device: LoopDevice,
    node: Node,
}

impl Scene {
    fn new(delegate: Delegate) -> Self {
        Self::on(Node::new(delegate))
    }

    fn on(node: Node) -> Self {
        let device = node.ext4();
        with_mounted(device.path(), |root| {
            fs::write(root.join("of-the-volume"), "").unwrap();
        });
        let target = node.stage(POD, "pv-1", &device, &[]);
        let sandbox = node.sandbox(POD);
        let host = node.dir().subdir("host");
        fs::write(host.join("of-the-host"), "").unwrap();
        Self {
            target,
            host,
            sandbox,
            device,
            node,
        }
    }

    /// Returns the bundle of an app whose config has these members instead of `mounts`.
    fn app(&self, members: impl FnOnce(&MountLists) -> String) -> Bundle {
        let bundle = self.node.app_bundle(&self.sandbox);
        let lists = MountLists {
            basic: bundle.spec()["mounts"].as_array().unwrap().clone(),
            target: self.target.clone(),
            host: self.host.clone(),
        };
        let text = with_members(&bundle, &members(&lists));
        bundle.write_bytes(text.as_bytes())
    }

    /// Runs a container, and asserts which of the files it sees at `/data`.
    #[track_caller]
    fn assert_sees(&self, bundle: &Bundle, name: &str) -> Container {
        let app = self.node.run(bundle);
        let seen = app.sh("ls /data | grep of-the");
        assert_eq!(seen, name, "{}", bundle.id());
        app
    }
}

/// Lists of mounts, as JSON.
struct MountLists {
    basic: Vec<Value>,
    target: PathBuf,
    host: PathBuf,
}

impl MountLists {
    /// Returns the basic mounts and this one.
    fn with_mount(&self, mount: &str) -> String {
        let basic = serde_json::to_string(&self.basic).unwrap();
        format!("{},{mount}]", &basic[..basic.len() - 1])
    }

    /// Returns the basic mounts and the volume at `/data`.
    fn volume(&self) -> String {
        self.with_mount(&data(&json!(self.target).to_string()))
    }

    /// Returns the basic mounts and the host's directory at `/data`.
    fn host(&self) -> String {
        self.with_mount(&data(&json!(self.host).to_string()))
    }
}

/// Returns a bind mount at `/data`. `source` is JSON.
fn data(source: &str) -> String {
    format!(
        r#"{{"destination":"/data","type":"bind","options":["rbind","rprivate"],"source":{source}}}"#
    )
}

/// Returns a bundle's config as JSON, with these members before the rest, and without its own `mounts`.
fn with_members(bundle: &Bundle, members: &str) -> String {
    let mut spec = bundle.spec().clone();
    spec.as_object_mut().unwrap().remove("mounts");
    format!("{{{members},{}", &spec.to_string()[1..])
}
