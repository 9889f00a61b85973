//! Types that no mount can write to. They aren't allowed by default.

use super::descriptor::FileSystem;

const fn read_only(name: &'static str) -> FileSystem {
    FileSystem {
        name,
        is_read_only: true,
        ..FileSystem::BASE
    }
}

pub(super) static SQUASHFS: FileSystem = read_only("squashfs");
pub(super) static EROFS: FileSystem = read_only("erofs");
pub(super) static ISO9660: FileSystem = read_only("iso9660");
pub(super) static CRAMFS: FileSystem = read_only("cramfs");
pub(super) static ROMFS: FileSystem = read_only("romfs");
