//! Finds the devices that conflict with one. Some may be on a file system that hangs.

use std::cell::{RefCell, RefMut};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use super::{Aliases, DeviceError, DeviceNumber, SYSFS, shown_by, sysfs};
use crate::sys::loops::LoopStatus;
use crate::sys::probe_process::Answer;
use crate::timed_probe::{ProbeError, about_loop, ask_all};

/// For all together, and once more for those that don't answer. A file that `own` is on, too, has been
/// asked just before, and mostly answers from a cache.
const PATIENCE: Duration = Duration::from_secs(1);

/// So long what a loop device said is believed, and that it said nothing. Whoever lets it show something else
/// meanwhile, and has no list of owners changed, isn't seen; nor is whoever does just after the last look.
const MOMENT: Duration = Duration::from_millis(100);

/// For those that didn't answer a moment ago: what has recovered answers at once.
const LITTLE: Duration = Duration::from_millis(100);

/// A cache of the files of the machine's loop devices. A machine may have thousands of them and a pod many volumes, so
/// they aren't asked for each volume.
#[derive(Debug)]
pub struct Neighbours {
    said: RefCell<Said>,
    moment: Duration,
}

/// The answers of loop devices, and the time of the first one.
#[derive(Debug, Default)]
struct Said {
    /// The files of loop devices. `None` stands for one that has to be asked by itself: it had no file, or failed, or
    /// was found to answer.
    words: BTreeMap<DeviceNumber, Option<LoopStatus>>,
    since: Option<Instant>,
    /// Those whose files don't answer, and when the first of them didn't.
    silent: Vec<DeviceNumber>,
    silent_since: Option<Instant>,
    /// Those whose files didn't before.
    once_silent: Vec<DeviceNumber>,
    /// The owners' lists as they were before those on them were asked.
    lists: Vec<Revision>,
}

/// A device, and a number that changes whenever the caller's own record of the device is written anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Revision {
    /// The device.
    pub device: DeviceNumber,
    /// The record's number: an earlier record of the same device had another.
    pub number: u64,
}

/// Those of the devices that are the same bytes as `own`, or lie on them, or the other way round. One
/// that is gone isn't. Nor is one whose file doesn't answer, or only with an error: that is on a file
/// system which hangs or has failed, and the one of `own`'s has just answered. Whatever else can't be told is an error.
pub(super) fn conflicting(
    own: &Aliases,
    devices: Vec<DeviceNumber>,
    neighbours: &Neighbours,
) -> Result<Vec<DeviceNumber>, DeviceError> {
    let sysfs = Path::new(SYSFS);
    let mut said = neighbours.said_just_now();
    if said.silent.iter().any(|device| own.are_of(*device)) {
        // It has answered by now, and so may the others.
        said.doubt_the_silent();
    }
    said.ask_below(sysfs, &devices)?;
    let mut conflicting = Vec::new();
    for device in devices {
        let plain = said.shows(device);
        let plain = plain.and_then(|status| Aliases::of_shown(device, &status));
        let read = || Aliases::read(sysfs, |device| said.tells(device), device);
        match plain.map_or_else(read, Ok) {
            Ok(aliases) if aliases.conflicts_with(own) => conflicting.push(device),
            Err(error @ DeviceError::Silent(_)) => tracing::warn!(%device, "{error}"),
            Err(error) if sysfs::name(sysfs, device)?.is_some() => return Err(error),
            Ok(_) | Err(_) => {}
        }
    }
    Ok(conflicting)
}

impl Default for Neighbours {
    fn default() -> Self {
        Self::with_max_age(MOMENT)
    }
}

impl Neighbours {
    /// With another moment than the usual one.
    #[must_use]
    pub fn with_max_age(moment: Duration) -> Self {
        Self {
            said: RefCell::default(),
            moment,
        }
    }

    fn said_just_now(&self) -> RefMut<'_, Said> {
        let mut said = self.said.borrow_mut();
        said.forget_the_old(self.moment, Instant::now());
        said
    }

    /// Asks all loop devices of the machine together, where somebody is about to ask for some of them and then for
    /// the others.
    pub fn probe_all(&self) -> Result<(), DeviceError> {
        let mut said = self.said_just_now();
        let mut loops = BTreeMap::new();
        for device in sysfs::loops()? {
            if !said.has_of(device)
                && let Some(name) = sysfs::loop_name(Path::new(SYSFS), device)
            {
                loops.insert(device, name);
            }
        }
        said.ask(&loops)
    }

    /// From the lists of owners as they are now, in order: what a device said before its list was written isn't
    /// believed any more. It was attached before that, perhaps anew, and whoever claims another volume now mustn't
    /// take it for what it was.
    pub fn retain_listed(&self, lists: &[Revision]) {
        self.said_just_now().retain_listed(lists);
    }

    /// A device has just answered for itself, and is about to come on a list of owners.
    pub fn note_answer(&self, device: DeviceNumber) {
        self.said_just_now().note_answer(device);
    }
}

impl Said {
    /// Whether it has just been asked, whatever came of it.
    fn has_of(&self, device: DeviceNumber) -> bool {
        self.words.contains_key(&device) || self.silent.contains(&device)
    }

    fn shows(&self, device: DeviceNumber) -> Option<LoopStatus> {
        *self.words.get(&device)?
    }

    /// Returns the file of a loop device, from the cache or from the device; `None` as in [`shown_by`].
    fn tells(&mut self, device: DeviceNumber) -> Result<Option<LoopStatus>, DeviceError> {
        if self.silent.contains(&device) {
            return Err(DeviceError::Silent(device));
        }
        if let Some(known) = self.shows(device) {
            return Ok(Some(known));
        }
        let status = shown_by(device)?;
        // Its list of owners is as it was when that was looked at last, and was written before it is asked now.
        if let Some(word) = self.words.get_mut(&device) {
            *word = status;
        }
        Ok(status)
    }

    fn forget_the_old(&mut self, moment: Duration, now: Instant) {
        let is_over = |since: &mut Instant| now.saturating_duration_since(*since) >= moment;
        // As a whole: one by one would be a good deal of code in a program that is to be small.
        if self.since.take_if(is_over).is_some() {
            self.words = BTreeMap::new();
        }
        if self.silent_since.take_if(is_over).is_some() {
            self.doubt_the_silent();
        }
    }

    fn doubt_the_silent(&mut self) {
        self.once_silent.append(&mut self.silent);
    }

    fn note_answer(&mut self, device: DeviceNumber) {
        self.since.get_or_insert_with(Instant::now);
        self.forget_that_it_was_silent(device);
        self.words.insert(device, None);
    }

    fn forget_that_it_was_silent(&mut self, device: DeviceNumber) {
        for silent in [&mut self.silent, &mut self.once_silent] {
            silent.retain(|silent| *silent != device);
        }
    }

    fn retain_listed(&mut self, lists: &[Revision]) {
        for list in lists {
            if self.lists.binary_search(list).is_ok() {
                continue;
            }
            self.forget_that_it_was_silent(list.device);
            if self.shows(list.device).is_some() {
                self.words.remove(&list.device);
            }
        }
        lists.clone_into(&mut self.lists);
    }

    /// Asks the loop devices among these and those that they lie on. Of the lower ones nothing is believed that was
    /// said before: the list of owners is the upper one's.
    fn ask_below(&mut self, sysfs: &Path, devices: &[DeviceNumber]) -> Result<(), DeviceError> {
        let mut rest = devices.to_vec();
        let mut lower = Vec::new();
        while !rest.is_empty() {
            let mut loops = BTreeMap::new();
            for device in &rest {
                if lower.contains(device) || self.shows(*device).is_none() {
                    sysfs::loops_among(sysfs, *device, &mut loops);
                }
            }
            for device in loops.keys() {
                if lower.contains(device) || !rest.contains(device) {
                    self.words.remove(device);
                }
            }
            self.ask(&loops)?;
            let shown = rest.iter().chain(loops.keys());
            let disks = shown.filter_map(|device| self.shows(*device)?.file.disk);
            rest = disks.filter(|disk| !lower.contains(disk)).collect();
            lower.extend(&rest);
        }
        Ok(())
    }

    /// Asks loop devices, by their names, what they show; but for those that have just said it, or nothing.
    fn ask<'a>(
        &mut self,
        loops: impl IntoIterator<Item = (&'a DeviceNumber, &'a OsString)>,
    ) -> Result<(), DeviceError> {
        let [mut new, mut silent] = [const { (Vec::new(), Vec::new()) }; 2];
        for (device, name) in loops {
            if !self.has_of(*device) {
                let was_silent = self.once_silent.contains(device);
                let (asked, questions) = if was_silent { &mut silent } else { &mut new };
                asked.push(*device);
                questions.push(about_loop(&Path::new("/dev").join(name)));
            }
        }
        for ((asked, questions), limit) in [(new, PATIENCE), (silent, LITTLE)] {
            let when = Instant::now();
            let answers = match ask_all(&questions, limit) {
                // It is the node that is slow, and not what is asked.
                Err(ProbeError::Slow) if limit < PATIENCE => ask_all(&questions, PATIENCE),
                answers => answers,
            };
            let answers = answers.map_err(DeviceError::Probe)?;
            self.note(when, asked.into_iter().zip(answers));
        }
        Ok(())
    }

    /// Notes what devices answered that were asked then.
    fn note(
        &mut self,
        when: Instant,
        answers: impl Iterator<Item = (DeviceNumber, Option<Answer>)>,
    ) {
        // Most answer at once; that others don't answer for long makes none of it younger.
        self.since.get_or_insert(when);
        for (device, answer) in answers {
            self.forget_that_it_was_silent(device);
            let Some(Answer { shown }) = answer else {
                self.silent_since.get_or_insert_with(Instant::now);
                self.silent.push(device);
                continue;
            };
            self.words.insert(device, None);
            // By the node's own number: it may be another device's.
            if let Some((number, status)) = shown {
                self.words.insert(number, Some(status));
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

    /// Devices 0 and 1 show something, 2 shows nothing, 3 doesn't answer.
    fn asked(when: Instant) -> Said {
        let mut said = Said::default();
        let shown = |minor| Some((device(minor), status(minor.into())));
        let answers = [shown(0), shown(1), None].map(|shown| Some(Answer { shown }));
        let answers = answers.into_iter().chain([None]);
        said.note(when, (0..).map(device).zip(answers));
        said
    }

    fn known(said: &Said) -> [Vec<DeviceNumber>; 2] {
        let words = said.words.keys().copied().collect();
        [words, said.silent.clone()]
    }

    #[test]
    fn a_word_is_as_old_as_the_question() {
        let now = Instant::now();
        for (ago, words) in [(0, 3), (1999, 3), (2000, 0)] {
            let mut said = asked(now.checked_sub(Duration::from_millis(ago)).unwrap());
            said.forget_the_old(Duration::from_secs(2), now);
            let [known, silent] = known(&said);
            assert_eq!((known.len(), silent), (words, vec![device(3)]), "{ago}");
        }
    }

    #[test]
    fn that_somebody_was_silent_is_doubted_after_a_moment() {
        let mut said = asked(Instant::now());
        let moment = Duration::from_secs(3600);
        said.forget_the_old(moment, Instant::now());
        assert_eq!(
            (&*said.silent, &*said.once_silent),
            (&[device(3)][..], &[][..])
        );
        said.forget_the_old(moment, Instant::now() + moment);
        assert_eq!(
            (&*said.silent, &*said.once_silent),
            (&[][..], &[device(3)][..])
        );
        said.note(Instant::now(), [(device(3), None)].into_iter());
        assert_eq!(
            (&*said.silent, &*said.once_silent),
            (&[device(3)][..], &[][..])
        );
    }

    #[test]
    fn who_answers_again_is_silent_no_more() {
        let mut said = asked(Instant::now());
        let shown = Some((device(3), status(3)));
        let again = [(device(3), Some(Answer { shown }))];
        said.note(Instant::now(), again.into_iter());
        assert_eq!(said.silent, []);
        assert_eq!(said.shows(device(3)), Some(status(3)));
    }

    #[test]
    fn that_a_device_answers_for_itself_is_forgotten_too() {
        let mut said = Said::default();
        said.note_answer(device(0));
        said.forget_the_old(Duration::ZERO, Instant::now());
        assert_eq!(known(&said), [vec![], vec![]]);
    }

    #[test]
    fn what_was_said_before_a_device_came_on_its_list_is_forgotten() {
        let list = |minor, number| Revision {
            device: device(minor),
            number,
        };
        let mut said = Said::default();
        said.retain_listed(&[list(0, 10)]);
        let Said { words, silent, .. } = asked(Instant::now());
        (said.words, said.silent) = (words, silent);
        said.retain_listed(&[list(0, 10)]);
        assert_eq!(said.words.len(), 3, "as before");
        said.retain_listed(&[list(0, 10), list(1, 11), list(2, 12), list(3, 13)]);
        // Whoever shows nothing is asked anyway.
        assert_eq!(known(&said), [vec![device(0), device(2)], vec![]]);
        said.retain_listed(&[list(0, 14)]);
        assert_eq!(known(&said), [vec![device(2)], vec![]]);
    }

    #[test]
    fn who_is_silent_is_not_asked_here() {
        let mut said = asked(Instant::now());
        let told = said.tells(device(3));
        assert!(
            matches!(told, Err(DeviceError::Silent(it)) if it == device(3)),
            "{told:?}"
        );
        assert_eq!(said.tells(device(1)).unwrap(), Some(status(1)));
    }

    #[test]
    fn a_node_of_another_device_speaks_for_that_one_alone() {
        let mut said = Said::default();
        let shown = Some((device(5), status(5)));
        said.note(
            Instant::now(),
            [(device(4), Some(Answer { shown }))].into_iter(),
        );
        assert_eq!(said.shows(device(4)), None);
        assert_eq!(said.shows(device(5)), Some(status(5)));
    }
}
