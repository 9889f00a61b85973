//! Finds the devices that conflict with a device. For these lookups it caches the status of the node's loop devices. A
//! loop device whose backing file is on a file system that hangs must not hold up the other devices.

use std::cell::{RefCell, RefMut};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use super::{Aliases, DeviceError, DeviceNumber, SYSFS, read_loop_status, sysfs};
use crate::sys::loops::LoopStatus;
use crate::sys::probe_process::ProbeResult;
use crate::timed_probe::{ProbeError, loop_probe, run_probes};

/// The time limit of all probes together, and of a second round for the devices that gave no answer. A device that
/// conflicts usually answers from the kernel's cache, because the same file has been queried through the other device
/// just before.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// The time limit for devices that didn't respond a short time ago. A device that has recovered answers at once.
const RETRY_TIMEOUT: Duration = Duration::from_millis(100);

/// The time for which a status, or the fact that a device didn't respond, is used.
///
/// Within this time the cache doesn't notice that a loop device is attached to another file, unless an owner list
/// changes. Without a cache, that could still happen unnoticed right after the probe.
const MAX_AGE: Duration = Duration::from_millis(100);

/// A cache of the status of the node's loop devices. A node may have thousands of loop devices and a pod many volumes,
/// so probing all devices for each volume would take too long.
#[derive(Debug)]
pub struct LoopDeviceCache {
    entries: RefCell<CacheEntries>,
    max_age: Duration,
}

#[derive(Debug, Default)]
struct CacheEntries {
    /// The status of loop devices. A device with `None` has to be queried directly: it wasn't attached, its query
    /// failed, or nothing is known except that it responds.
    statuses: BTreeMap<DeviceNumber, Option<LoopStatus>>,
    /// The time of the oldest status.
    statuses_since: Option<Instant>,
    /// Devices whose backing files don't respond.
    unresponsive: Vec<DeviceNumber>,
    /// The time when the first of the `unresponsive` devices didn't respond.
    unresponsive_since: Option<Instant>,
    /// Devices that didn't respond earlier. They may have recovered, and are probed with [`RETRY_TIMEOUT`].
    earlier_unresponsive: Vec<DeviceNumber>,
    /// The versions of the owner lists before their devices were probed, sorted.
    lists: Vec<OwnerListVersion>,
}

/// The version of a device's owner list, which the caller keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct OwnerListVersion {
    /// The device that the list is for.
    pub device: DeviceNumber,
    /// A number that differs between all versions of the same device's list.
    pub number: u64,
}

/// Returns which of `devices` conflict with `own` ([`Aliases::conflicts_with`]).
///
/// A device that is gone doesn't conflict. Neither does a loop device whose backing file doesn't respond or only
/// returns errors: its file system hangs or has failed, while the file of `own` has just responded. Any other
/// failed lookup is an error.
pub(super) fn conflicting(
    own: &Aliases,
    devices: Vec<DeviceNumber>,
    cache: &LoopDeviceCache,
) -> Result<Vec<DeviceNumber>, DeviceError> {
    let sysfs = Path::new(SYSFS);
    let mut entries = cache.fresh_entries();
    if entries
        .unresponsive
        .iter()
        .any(|device| own.include(*device))
    {
        // The device has responded since, and so may the others.
        entries.expire_unresponsive();
    }
    entries.probe_with_lower(sysfs, &devices)?;
    let mut conflicting = Vec::new();
    for device in devices {
        let cached = entries.status(device);
        let on_file = cached.and_then(|status| Aliases::from_loop_status(device, &status));
        let read = || Aliases::read(sysfs, |device| entries.status_or_query(device), device);
        match on_file.map_or_else(read, Ok) {
            Ok(aliases) if aliases.conflicts_with(own) => conflicting.push(device),
            Err(error @ DeviceError::Unresponsive(_)) => tracing::warn!(%device, "{error}"),
            Err(error) if sysfs::name(sysfs, device)?.is_some() => return Err(error),
            Ok(_) | Err(_) => {}
        }
    }
    Ok(conflicting)
}

impl Default for LoopDeviceCache {
    fn default() -> Self {
        Self::with_max_age(MAX_AGE)
    }
}

impl LoopDeviceCache {
    /// Creates an empty cache that uses its entries for `max_age` instead of the default of 100 ms.
    #[must_use]
    pub fn with_max_age(max_age: Duration) -> Self {
        Self {
            entries: RefCell::default(),
            max_age,
        }
    }

    /// Returns the entries that are not too old.
    fn fresh_entries(&self) -> RefMut<'_, CacheEntries> {
        let mut entries = self.entries.borrow_mut();
        entries.expire(self.max_age, Instant::now());
        entries
    }

    /// Probes all loop devices of the node at once. This is faster than separate probes if the caller is about to need
    /// first some of them and then the rest.
    pub fn probe_all(&self) -> Result<(), DeviceError> {
        let mut entries = self.fresh_entries();
        let mut loop_devices = BTreeMap::new();
        for device in sysfs::loop_devices()? {
            if !entries.is_cached(device)
                && let Some(name) = sysfs::loop_name(Path::new(SYSFS), device)
            {
                loop_devices.insert(device, name);
            }
        }
        entries.probe(&loop_devices)
    }

    /// Discards the entries of the devices whose owner list has changed. `lists` are the current versions, sorted.
    ///
    /// A new owner may have attached the device to another file before it was listed. If the earlier status were still
    /// used, another volume with the same data could be claimed.
    pub fn forget_outdated(&self, lists: &[OwnerListVersion]) {
        self.fresh_entries().forget_outdated(lists);
    }

    /// Records that a device has just responded, and discards its cached status. The caller is about to add a volume to
    /// the device's owner list, and a status from before this change must not be used after it.
    pub fn note_alive(&self, device: DeviceNumber) {
        self.fresh_entries().note_alive(device);
    }
}

impl CacheEntries {
    /// Returns whether the device was probed, whatever the result.
    fn is_cached(&self, device: DeviceNumber) -> bool {
        self.statuses.contains_key(&device) || self.unresponsive.contains(&device)
    }

    fn status(&self, device: DeviceNumber) -> Option<LoopStatus> {
        *self.statuses.get(&device)?
    }

    /// Returns the status of a loop device from the cache, or else from the device; `None` as in [`read_loop_status`].
    fn status_or_query(&mut self, device: DeviceNumber) -> Result<Option<LoopStatus>, DeviceError> {
        if self.unresponsive.contains(&device) {
            return Err(DeviceError::Unresponsive(device));
        }
        if let Some(cached) = self.status(device) {
            return Ok(Some(cached));
        }
        let status = read_loop_status(device)?;
        // The status is newer than the device's owner list, which was checked and written before.
        if let Some(cached) = self.statuses.get_mut(&device) {
            *cached = status;
        }
        Ok(status)
    }

    /// Discards all statuses if the oldest one has reached `max_age`, and likewise the devices that don't respond.
    /// Expiring them one by one would take more code, and the program is meant to be small.
    fn expire(&mut self, max_age: Duration, now: Instant) {
        let is_expired = |since: &mut Instant| now.saturating_duration_since(*since) >= max_age;
        if self.statuses_since.take_if(is_expired).is_some() {
            self.statuses = BTreeMap::new();
        }
        if self.unresponsive_since.take_if(is_expired).is_some() {
            self.expire_unresponsive();
        }
    }

    /// Causes the devices that didn't respond to be probed again when they are needed.
    fn expire_unresponsive(&mut self) {
        self.earlier_unresponsive.append(&mut self.unresponsive);
    }

    fn note_alive(&mut self, device: DeviceNumber) {
        self.statuses_since.get_or_insert_with(Instant::now);
        self.forget_unresponsive(device);
        self.statuses.insert(device, None);
    }

    fn forget_unresponsive(&mut self, device: DeviceNumber) {
        for devices in [&mut self.unresponsive, &mut self.earlier_unresponsive] {
            devices.retain(|other| *other != device);
        }
    }

    fn forget_outdated(&mut self, lists: &[OwnerListVersion]) {
        for list in lists {
            if self.lists.binary_search(list).is_ok() {
                continue;
            }
            self.forget_unresponsive(list.device);
            if self.status(list.device).is_some() {
                self.statuses.remove(&list.device);
            }
        }
        lists.clone_into(&mut self.lists);
    }

    /// Probes the loop devices among `devices`, and the loop devices that they lie on. Cached statuses of lower devices
    /// aren't used, because a change of a lower device doesn't change the owner list of the upper one.
    fn probe_with_lower(
        &mut self,
        sysfs: &Path,
        devices: &[DeviceNumber],
    ) -> Result<(), DeviceError> {
        let mut rest = devices.to_vec();
        let mut lower = Vec::new();
        while !rest.is_empty() {
            let mut loop_devices = BTreeMap::new();
            for device in &rest {
                if lower.contains(device) || self.status(*device).is_none() {
                    sysfs::add_loop_devices(sysfs, *device, &mut loop_devices);
                }
            }
            for device in loop_devices.keys() {
                if lower.contains(device) || !rest.contains(device) {
                    self.statuses.remove(device);
                }
            }
            self.probe(&loop_devices)?;
            let probed = rest.iter().chain(loop_devices.keys());
            let disks = probed.filter_map(|device| self.status(*device)?.file.disk);
            rest = disks.filter(|disk| !lower.contains(disk)).collect();
            lower.extend(&rest);
        }
        Ok(())
    }

    /// Probes loop devices, by their names below `/dev`, unless they are in the cache.
    fn probe<'a>(
        &mut self,
        loop_devices: impl IntoIterator<Item = (&'a DeviceNumber, &'a OsString)>,
    ) -> Result<(), DeviceError> {
        let [mut new, mut retried] = [const { (Vec::new(), Vec::new()) }; 2];
        for (device, name) in loop_devices {
            if !self.is_cached(*device) {
                let is_retry = self.earlier_unresponsive.contains(device);
                let (devices, probes) = if is_retry { &mut retried } else { &mut new };
                devices.push(*device);
                probes.push(loop_probe(&Path::new("/dev").join(name)));
            }
        }
        for ((devices, probes), limit) in [(new, PROBE_TIMEOUT), (retried, RETRY_TIMEOUT)] {
            let started = Instant::now();
            let results = match run_probes(&probes, limit) {
                // The node is slow, not the devices.
                Err(ProbeError::Slow) if limit < PROBE_TIMEOUT => {
                    run_probes(&probes, PROBE_TIMEOUT)
                }
                results => results,
            };
            let results = results.map_err(DeviceError::Probe)?;
            self.record(started, devices.into_iter().zip(results));
        }
        Ok(())
    }

    /// Records the results of probes that were started at `started`.
    fn record(
        &mut self,
        started: Instant,
        results: impl Iterator<Item = (DeviceNumber, Option<ProbeResult>)>,
    ) {
        // Most devices answer at once, so a status is as old as the start of the probes.
        self.statuses_since.get_or_insert(started);
        for (device, result) in results {
            self.forget_unresponsive(device);
            let Some(ProbeResult { loop_status }) = result else {
                self.unresponsive_since.get_or_insert_with(Instant::now);
                self.unresponsive.push(device);
                continue;
            };
            self.statuses.insert(device, None);
            // The node in `/dev` may belong to another device.
            if let Some((number, status)) = loop_status {
                self.statuses.insert(number, Some(status));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::loops::LoopFile;

    fn device(minor: u32) -> DeviceNumber {
        DeviceNumber::new(7, minor)
    }

    fn status(inode: u64) -> LoopStatus {
        LoopStatus {
            file: LoopFile {
                device: 1,
                inode,
                disk: None,
            },
            offset: 0,
            size_limit: 0,
            flags: 0,
        }
    }

    /// Returns entries for probes at this time: devices 0 and 1 are attached, 2 isn't, and 3 doesn't respond.
    fn probed_at(when: Instant) -> CacheEntries {
        let mut entries = CacheEntries::default();
        let attached = |minor| Some((device(minor), status(minor.into())));
        let results =
            [attached(0), attached(1), None].map(|loop_status| Some(ProbeResult { loop_status }));
        let results = results.into_iter().chain([None]);
        entries.record(when, (0..).map(device).zip(results));
        entries
    }

    /// Returns the devices that have responded, and those that haven't.
    fn cached_devices(entries: &CacheEntries) -> [Vec<DeviceNumber>; 2] {
        let responsive = entries.statuses.keys().copied().collect();
        [responsive, entries.unresponsive.clone()]
    }

    #[test]
    fn the_age_of_a_status_counts_from_the_start_of_the_probes() {
        let now = Instant::now();
        for (ago, count) in [(0, 3), (1999, 3), (2000, 0)] {
            let mut entries = probed_at(now.checked_sub(Duration::from_millis(ago)).unwrap());
            entries.expire(Duration::from_secs(2), now);
            let [responsive, unresponsive] = cached_devices(&entries);
            assert_eq!(
                (responsive.len(), unresponsive),
                (count, vec![device(3)]),
                "{ago}"
            );
        }
    }

    #[test]
    fn an_unresponsive_device_is_retried_after_the_maximum_age() {
        let mut entries = probed_at(Instant::now());
        let max_age = Duration::from_secs(3600);
        entries.expire(max_age, Instant::now());
        assert_eq!(
            (&*entries.unresponsive, &*entries.earlier_unresponsive),
            (&[device(3)][..], &[][..])
        );
        entries.expire(max_age, Instant::now() + max_age);
        assert_eq!(
            (&*entries.unresponsive, &*entries.earlier_unresponsive),
            (&[][..], &[device(3)][..])
        );
        entries.record(Instant::now(), [(device(3), None)].into_iter());
        assert_eq!(
            (&*entries.unresponsive, &*entries.earlier_unresponsive),
            (&[device(3)][..], &[][..])
        );
    }

    #[test]
    fn a_device_that_responds_again_is_cached() {
        let mut entries = probed_at(Instant::now());
        let loop_status = Some((device(3), status(3)));
        let results = [(device(3), Some(ProbeResult { loop_status }))];
        entries.record(Instant::now(), results.into_iter());
        assert_eq!(entries.unresponsive, []);
        assert_eq!(entries.status(device(3)), Some(status(3)));
    }

    #[test]
    fn the_fact_that_a_device_responds_expires_as_well() {
        let mut entries = CacheEntries::default();
        entries.note_alive(device(0));
        entries.expire(Duration::ZERO, Instant::now());
        assert_eq!(cached_devices(&entries), [vec![], vec![]]);
    }

    #[test]
    fn a_status_from_before_the_current_owner_list_is_forgotten() {
        let list = |minor, number| OwnerListVersion {
            device: device(minor),
            number,
        };
        let mut entries = CacheEntries::default();
        entries.forget_outdated(&[list(0, 10)]);
        let CacheEntries {
            statuses,
            unresponsive,
            ..
        } = probed_at(Instant::now());
        (entries.statuses, entries.unresponsive) = (statuses, unresponsive);
        entries.forget_outdated(&[list(0, 10)]);
        assert_eq!(entries.statuses.len(), 3, "no list has changed");
        entries.forget_outdated(&[list(0, 10), list(1, 11), list(2, 12), list(3, 13)]);
        // A device without a status is queried anyway.
        assert_eq!(
            cached_devices(&entries),
            [vec![device(0), device(2)], vec![]]
        );
        entries.forget_outdated(&[list(0, 14)]);
        assert_eq!(cached_devices(&entries), [vec![device(2)], vec![]]);
    }

    #[test]
    fn an_unresponsive_device_is_not_queried() {
        let mut entries = probed_at(Instant::now());
        let result = entries.status_or_query(device(3));
        assert!(
            matches!(result, Err(DeviceError::Unresponsive(it)) if it == device(3)),
            "{result:?}"
        );
        assert_eq!(entries.status_or_query(device(1)).unwrap(), Some(status(1)));
    }

    #[test]
    fn a_status_is_cached_for_the_device_that_reported_it() {
        let mut entries = CacheEntries::default();
        let loop_status = Some((device(5), status(5)));
        entries.record(
            Instant::now(),
            [(device(4), Some(ProbeResult { loop_status }))].into_iter(),
        );
        assert_eq!(entries.status(device(4)), None);
        assert_eq!(entries.status(device(5)), Some(status(5)));
    }
}
