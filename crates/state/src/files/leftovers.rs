//! What a process that was killed was making.

use std::path::Path;
use std::time::Duration;

use rustix::fs::{self, AtFlags};
use rustix::io::Errno;

use super::temporary::{Maker, maker, since_the_epoch};
use super::{Directory, FileError, failed};

/// Longer than anybody makes a file; a pid that isn't found may be one of another pid namespace.
const AGE: Duration = Duration::from_secs(600);

impl Directory {
    /// Removes the files and directories in here that a process that is gone was making or
    /// removing; what went wrong. Of a directory the files are removed, and no link is followed.
    #[must_use]
    pub(crate) fn remove_leftovers(&self) -> Vec<FileError> {
        let names = match self.names() {
            Ok(names) => names,
            Err(error) => return vec![error],
        };
        let is_left = |name: &String| maker(name).is_some_and(|maker| is_over(&maker));
        let left = names.iter().filter(|name| is_left(name));
        left.filter_map(|name| self.remove_leftover(name).err())
            .collect()
    }

    fn remove_leftover(&self, name: &str) -> Result<(), FileError> {
        let path = self.path.join(name);
        let stat = match fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            // Somebody else was faster.
            Err(Errno::NOENT) => return Ok(()),
            Err(error) => return Err(failed("fstatat", &path, error)),
        };
        match fs::FileType::from_raw_mode(stat.st_mode) {
            fs::FileType::Directory => self.remove_tree(name)?,
            fs::FileType::RegularFile => self.remove(name)?,
            // We make no others.
            _ => return Ok(()),
        }
        tracing::info!(path = %path.display(), "removed: who was making it is gone");
        Ok(())
    }
}

fn is_over(maker: &Maker) -> bool {
    let old = maker.at + AGE < since_the_epoch();
    let process = format!("/proc/{}", maker.pid);
    old && matches!(Path::new(&process).try_exists(), Ok(false))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// More than pids can be.
    const NOBODY: u32 = u32::MAX;

    fn left(name: &str, pid: u32, ago: Duration) -> String {
        let at = since_the_epoch().saturating_sub(ago).as_nanos();
        format!(".{name}.{pid}.{at:x}.0")
    }

    #[test]
    fn what_a_process_that_is_gone_left_long_ago_is_removed_and_nothing_else() {
        let temporary = tempfile::tempdir().unwrap();
        let directory = Directory::create(&temporary.path().join("crust")).unwrap();
        let path = |name: &str| directory.path().join(name);
        let long = AGE * 2;
        let outside = temporary.path().join("outside");
        std::fs::write(&outside, "kept").unwrap();

        let file = left("mountInfo.json", NOBODY, long);
        std::fs::write(path(&file), "{").unwrap();
        let entry = left("entry", NOBODY, long);
        directory.create_directory(&entry).unwrap();
        std::fs::write(path(&entry).join("mountInfo.json"), "{}").unwrap();
        symlink(&outside, path(&entry).join("link")).unwrap();

        let deep = left("deep", NOBODY, long);
        directory.create_directory(&deep).unwrap();
        std::fs::create_dir(path(&deep).join("below")).unwrap();
        let kept = [
            "plain".to_owned(),
            ".hidden".to_owned(),
            left("recent", NOBODY, Duration::ZERO),
            left("alive", std::process::id(), long),
        ];
        for name in &kept {
            std::fs::write(path(name), "{}").unwrap();
        }
        let link = left("link", NOBODY, long);
        symlink(&outside, path(&link)).unwrap();

        let errors = directory.remove_leftovers();
        let [error] = &errors[..] else {
            panic!("{errors:?}");
        };
        assert!(error.to_string().contains(&deep), "{error}");
        let mut expected: Vec<&String> = kept.iter().chain([&deep, &link]).collect();
        expected.sort();
        let mut names = directory.names().unwrap();
        names.sort();
        assert_eq!(names.iter().collect::<Vec<_>>(), expected);
        assert_eq!(std::fs::read(&outside).unwrap(), b"kept");
    }
}
