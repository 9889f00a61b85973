//! A `config.json` that is meant to be misread: what the delegate would make of it, and what of a
//! volume that it names.

mod passes;
mod readings;
mod sizes;

use std::fs;
use std::path::PathBuf;

use runcrust_tests::volume::with_mounted;
use runcrust_tests::{Bundle, Container, Delegate, LoopDevice, Node, POD};
use serde_json::{Value, json};

/// A pod with a volume, in which there is a file, and a directory of the host's with another.
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

    /// A container's bundle with these members in the place of its `mounts`.
    fn app(&self, members: impl FnOnce(&Lists) -> String) -> Bundle {
        let bundle = self.node.app_bundle(&self.sandbox);
        let lists = Lists {
            basic: bundle.spec()["mounts"].as_array().unwrap().clone(),
            target: self.target.clone(),
            host: self.host.clone(),
        };
        let text = with_members(&bundle, &members(&lists));
        bundle.write_bytes(text.as_bytes())
    }

    /// What a container sees at `/data`.
    #[track_caller]
    fn assert_sees(&self, bundle: &Bundle, name: &str) -> Container {
        let app = self.node.run(bundle);
        let seen = app.sh("ls /data | grep of-the");
        assert_eq!(seen, name, "{}", bundle.id());
        app
    }
}

/// Lists of mounts, as JSON.
struct Lists {
    basic: Vec<Value>,
    target: PathBuf,
    host: PathBuf,
}

impl Lists {
    /// What each container has, and this mount, as it is written.
    fn and(&self, mount: &str) -> String {
        let basic = serde_json::to_string(&self.basic).unwrap();
        format!("{},{mount}]", &basic[..basic.len() - 1])
    }

    /// The volume at `/data`, with what each container has.
    fn volume(&self) -> String {
        self.and(&data(&json!(self.target).to_string()))
    }

    /// The host's directory in its place.
    fn host(&self) -> String {
        self.and(&data(&json!(self.host).to_string()))
    }
}

/// A bind mount at `/data` of a source as it is written.
fn data(source: &str) -> String {
    format!(
        r#"{{"destination":"/data","type":"bind","options":["rbind","rprivate"],"source":{source}}}"#
    )
}

/// A bundle's config without its mounts, and with these members before the rest.
fn with_members(bundle: &Bundle, members: &str) -> String {
    let mut spec = bundle.spec().clone();
    spec.as_object_mut().unwrap().remove("mounts");
    format!("{{{members},{}", &spec.to_string()[1..])
}
