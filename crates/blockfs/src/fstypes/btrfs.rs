//! btrfs, on one device.

mod growth;
mod superblock;
mod twins;

use super::descriptor::{FileSystem, Format, Growth, OptionRules, Precautions, SECOND_DEVICE};

pub(super) static BTRFS: FileSystem = FileSystem {
    name: "btrfs",
    is_allowed_by_default: true,
    checker: Some("btrfs check"),
    superblock: Some(superblock::SUPERBLOCK),
    options: OptionRules {
        refused: &[("device", SECOND_DEVICE)],
        // `nologreplay` by itself is deprecated since Linux 5.9.
        no_journal_replay: Some("rescue=nologreplay"),
        no_journal_replay_too: &["nologreplay", "norecovery"],
        // It takes several `rescue=`, and does each.
        cumulative: &["rescue"],
        ..OptionRules::NONE
    },
    before_mount: Some(|device, _| {
        twins::check(device)?;
        Ok(Precautions::default())
    }),
    // Two may be mounted at once: from Linux 6.7 on the second gets a temporary id, before that the kernel refuses it.
    after_mount: Some(twins::check),
    growth: Some(&Growth {
        needs_reserves: false,
        size: growth::size,
        size_on_disk: growth::size_on_disk,
        check_allowed: |_, _| Ok(()),
        grow: growth::grow,
    }),
    format: Some(Format {
        mkfs: "mkfs.btrfs",
        // Without `-f` it refuses what isn't empty.
        options: &[],
        // mkfs.btrfs(8) 6.2, with its own defaults.
        least: 109 << 20,
        check_by_backup: None,
    }),
    has_anonymous_device: true,
    maps_ids_since: Some((5, 15)),
    // Before that it gives its new superblock the security module's defaults itself, which the mount's own option then
    // contradicts.
    takes_label_since: (6, 8),
    ..FileSystem::BASE
};
