//! Block devices that a container is given, with their cgroup rules.

use anyhow::Result;
use crust_blockfs::DeviceNumber;
use crust_state::TargetPath;
use crust_volume::Need;
use oci_spec::runtime::{
    LinuxDevice, LinuxDeviceBuilder, LinuxDeviceCgroup, LinuxDeviceCgroupBuilder, LinuxDeviceType,
};

use super::build::Rewrite;
use crate::oci::ArrayPath;

impl Rewrite {
    /// Adds the devices of volumes, each once.
    pub(super) fn pass_devices<'n>(
        &mut self,
        needs: impl IntoIterator<Item = &'n (TargetPath, Need)>,
    ) -> Result<()> {
        for passed in devices(needs) {
            self.push(ArrayPath::Devices, &passed.node()?)?;
            self.push(ArrayPath::DeviceRules, &passed.rule()?)?;
        }
        Ok(())
    }
}

/// A device.
struct Passed {
    /// Of the first volume on it.
    name: String,
    number: DeviceNumber,
    /// For every volume on it.
    read_only: bool,
}

/// One entry a device, however many volumes are on it.
fn devices<'n>(needs: impl IntoIterator<Item = &'n (TargetPath, Need)>) -> Vec<Passed> {
    let mut devices: Vec<Passed> = Vec::new();
    for (target, need) in needs {
        match devices.iter_mut().find(|it| it.number == need.device) {
            Some(passed) => passed.read_only &= need.read_only,
            None => devices.push(Passed {
                name: target.digest().short(),
                number: need.device,
                read_only: need.read_only,
            }),
        }
    }
    devices
}

impl Passed {
    fn node(&self) -> Result<LinuxDevice> {
        let node = LinuxDeviceBuilder::default()
            .path(format!("/dev/crust/{}", self.name))
            .typ(LinuxDeviceType::B)
            .major(i64::from(self.number.major()))
            .minor(i64::from(self.number.minor()))
            .file_mode(0o600_u32)
            .uid(0_u32)
            .gid(0_u32);
        Ok(node.build()?)
    }

    fn rule(&self) -> Result<LinuxDeviceCgroup> {
        let rule = LinuxDeviceCgroupBuilder::default()
            .allow(true)
            .typ(LinuxDeviceType::B)
            .major(i64::from(self.number.major()))
            .minor(i64::from(self.number.minor()))
            .access(if self.read_only { "r" } else { "rw" });
        Ok(rule.build()?)
    }
}
