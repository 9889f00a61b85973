//! A device that is detached between its stage and its mount. Another disk then gets its name and number. The other
//! disk has another volume's data.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use runcrust_tests::container::end;
use runcrust_tests::node::utf8;
use runcrust_tests::volume::with_mounted;
use runcrust_tests::{
    Bundle, Delegate, LoopDevice, Node, POD, Pod, Run, on_each_delegate, refusal, retry_lost_race,
};
use serde_json::Value;

const HOOK: &str = "mount_mode = \"hook\"";
const SENTENCE: &str = " isn't the disk that was staged: ";
const HINT: &str = "delete the pod so that its CSI driver does";

/// Creates an image with another volume's data.
fn other_image(node: &Node) -> PathBuf {
    let device = node.ext4();
    with_mounted(device.path(), |root| {
        fs::write(root.join("file"), "another's").unwrap();
    });
    device.file().to_owned()
}

/// A staged volume whose device was replaced by another one with the same name and number.
struct ReplacedDevice {
    other: LoopDevice,
    image: Vec<u8>,
    target: PathBuf,
    node: Node,
}

impl ReplacedDevice {
    fn new(delegate: Delegate, extra: &str) -> Self {
        retry_lost_race(|| Self::on(Node::with(delegate, extra)))
    }

    fn on(node: Node) -> Option<Self> {
        let image = other_image(&node);
        let device = node.ext4();
        let target = node.stage(POD, "pv-1", &device, &[]);
        let original = (device.path().to_owned(), device.number().to_owned());
        let other = device.reattach(&image)?;
        assert_eq!((other.path(), other.number()), (&*original.0, &*original.1));
        Some(Self {
            image: fs::read(&image).unwrap(),
            other,
            target,
            node,
        })
    }

    /// Returns the bundle of a plain container with the volume at `/data`.
    fn plain(&self) -> Bundle {
        let bundle = Bundle::plain(self.node.dir());
        let bundle = bundle.bind(&self.target, "/data", &[]).write();
        // A hook that mounts the volume does not create the mountpoint.
        fs::create_dir(bundle.rootfs().join("data")).unwrap();
        bundle
    }

    #[track_caller]
    fn refuses(&self, bundle: &Bundle) -> String {
        let refusal = refusal::create_refused(&self.node, bundle).naming_volume("pv-1");
        let named = [utf8(self.other.path()), SENTENCE, HINT];
        refusal.containing(&named).message()
    }

    /// Asserts that the other device is free, and that nothing was written to it.
    #[track_caller]
    fn assert_untouched(&self) {
        assert!(self.other.is_free());
        assert!(fs::read(self.other.file()).unwrap() == self.image);
    }
}

fn entry(node: &Node, target: &Path) -> PathBuf {
    node.entry(target).join("mountInfo.json")
}

/// Replaces the disk sequence number in the entry, and leaves the rest byte for byte.
fn replace_disk_seq(node: &Node, target: &Path, instead: &str) {
    let file = entry(node, target);
    let text = fs::read_to_string(&file).unwrap();
    let info: Value = serde_json::from_str(&text).unwrap();
    let written = format!(",\"diskSeq\":{}", info["metadata"]["diskSeq"]);
    assert!(text.contains(&written), "{text}");
    fs::write(&file, text.replace(&written, instead)).unwrap();
}

#[track_caller]
fn json_of(run: Run) -> Value {
    serde_json::from_str(&run.success().stdout).unwrap()
}

on_each_delegate! {
    fn another_disk_with_the_devices_name_is_refused(delegate: Delegate) {
        for extra in ["", "device_node = \"always\"", HOOK] {
            let replaced = ReplacedDevice::new(delegate, extra);
            let ReplacedDevice { node, target, other, .. } = &replaced;
            let plain = replaced.plain();
            let sentence = replaced.refuses(&plain);
            // With the settings of `HOOK` a sandbox has no volumes.
            if extra != HOOK {
                let _ = replaced.refuses(&node.sandbox_bundle(POD).write());
            }
            replaced.assert_untouched();

            let crust = |arguments: &[&str]| json_of(node.handler().crust(arguments));
            let explained = crust(&["explain", utf8(plain.path()), "--json"]);
            assert_eq!(explained["refusals"][0], sentence, "{explained:#}");
            assert_eq!(explained["volumes"][0]["problem"], sentence, "{explained:#}");
            let listed = crust(&["list", "--json"]);
            assert_eq!(listed["volumes"][0]["state"], "broken");
            let why = listed["volumes"][0]["why"].as_str().unwrap();
            assert!(sentence.ends_with(why), "{why}");
            let inspected = crust(&["inspect", utf8(target), "--json"]);
            assert_eq!(inspected["block_device"]["disk_seq"], other.disk_seq());
            assert_ne!(inspected["mount_info"]["metadata"]["diskSeq"], other.disk_seq());

            // A new stage by the driver makes the disk the volume's.
            let _ = node.stage(POD, "pv-1", other, &[]);
            let app = node.run(&replaced.plain());
            assert_eq!(app.sh("cat /data/file"), "another's");
            end([app]);
        }
    }

    fn another_disk_is_refused_in_a_running_sandbox(delegate: Delegate) {
        // The volume is staged after the sandbox's start, so it is not mounted.
        let extra = "sandbox = \"always\"";
        let (replaced, sandbox) = retry_lost_race(|| {
            let node = Node::with(delegate, extra);
            let sandbox = node.sandbox(POD);
            Some((ReplacedDevice::on(node)?, sandbox))
        });
        let bundle = replaced.node.app_bundle(&sandbox).bind(&replaced.target, "/data", &[]);
        let _ = replaced.refuses(&bundle.write());
        replaced.assert_untouched();
        end([sandbox]);
    }

    /// While a volume is mounted, its device cannot have been replaced, so the disk sequence number in the entry is
    /// ignored. It is compared again when the volume has to be mounted a second time.
    fn a_mounted_volume_is_not_compared(delegate: Delegate) {
        let (node, device) = Node::with_ext4(delegate);
        let pod = Pod::new(&node, POD, &device, &[]);
        let first = pod.app();
        replace_disk_seq(&node, &pod.target, ",\"diskSeq\":\"18446744073709551615\"");
        let written = fs::metadata(entry(&node, &pod.target)).unwrap();
        let second = pod.app();
        let _ = node.stage(POD, "pv-1", &device, &[]);
        let now = fs::metadata(entry(&node, &pod.target)).unwrap();
        assert_eq!((now.ino(), now.ctime_nsec()), (written.ino(), written.ctime_nsec()));
        assert_eq!(first.sh("echo on > /data/file; cat /data/file"), "on");
        let alone = Bundle::plain(node.dir()).bind(&pod.target, "/data", &[]).write();
        let alone = refusal::create_refused(&node, &alone).message();
        assert!(alone.contains(SENTENCE), "a second mount was not refused: {alone}");
        assert_eq!(second.sh("cat /data/file"), "on");
        pod.end([first, second]);
        let _ = node.stage(POD, "pv-1", &device, &[]);
        let pod = Pod::with_staged_volume(&node, POD, pod.target.clone());
        let app = pod.app();
        assert_eq!(app.sh("cat /data/file"), "on", "after a new stage");
        pod.end([app]);
    }

    fn without_a_disk_sequence_number_nothing_is_compared(delegate: Delegate) {
        let replaced = ReplacedDevice::new(delegate, "");
        replace_disk_seq(&replaced.node, &replaced.target, "");
        let app = replaced.node.run(&replaced.plain());
        assert_eq!(app.sh("cat /data/file"), "another's");
        end([app]);
    }
}
