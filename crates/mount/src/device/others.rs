//! Which of many devices conflict with one. Some may be on a file system that hangs.

use std::cell::{RefCell, RefMut};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use super::{Aliases, DeviceError, DeviceNumber, SYSFS, aliases, shown_by};
use crate::patience::{about_loop, answers};
use crate::sys::loops::LoopStatus;

/// For all together, and once more for those that don't answer. A file that `own` is on, too, has been
/// asked just before, and mostly answers from a cache.
const PATIENCE: Duration = Duration::from_secs(1);

/// So long what a loop device said is believed. Whoever lets it show something else meanwhile isn't seen, nor is
/// whoever does just after the last look.
const MOMENT: Duration = Duration::from_millis(100);

/// What the loop devices of the machine said a moment ago. It may have thousands, and a pod many volumes:
/// none is asked for each.
#[derive(Debug)]
pub struct Neighbours {
    said: RefCell<Said>,
    moment: Duration,
}

/// What was said, and when the first one did.
#[derive(Debug, Default)]
struct Said {
    words: BTreeMap<DeviceNumber, Word>,
    since: Option<Instant>,
}

/// What one of them said.
#[derive(Debug, Clone, Copy)]
enum Word {
    /// What it shows.
    Shows(LoopStatus),
    /// It shows nothing, or can't be asked from here.
    Nothing,
    /// Its file doesn't answer.
    Silent,
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
    let loops_of = |device| match said.words.get(&device) {
        // There is no other one below it that could be silent.
        Some(Word::Shows(_)) => (device, BTreeMap::new()),
        _ => (device, aliases::loops_among(sysfs, device)),
    };
    let devices: Vec<_> = devices.into_iter().map(loops_of).collect();
    said.ask(devices.iter().flat_map(|(_, loops)| loops))?;
    let mut conflicting = Vec::new();
    for (device, loops) in devices {
        let is_silent = |it: &&DeviceNumber| matches!(said.words.get(it), Some(Word::Silent));
        if let Some(silent) = loops.keys().find(is_silent) {
            tracing::warn!(%device, %silent, "what it shows can't be told: its file doesn't answer");
            continue;
        }
        let shows = |device| match said.words.get(&device) {
            Some(Word::Shows(status)) => Some(*status),
            _ => None,
        };
        let aliases = shows(device).and_then(|status| Aliases::of_shown(device, &status));
        let asked = |device| shows(device).map_or_else(|| shown_by(device), |it| Ok(Some(it)));
        match aliases.map_or_else(|| Aliases::read(sysfs, asked, device), Ok) {
            Ok(aliases) if aliases.conflicts_with(own) => conflicting.push(device),
            Err(error) if aliases::name(sysfs, device)?.is_some() => return Err(error),
            Ok(_) | Err(_) => {}
        }
    }
    Ok(conflicting)
}

impl Default for Neighbours {
    fn default() -> Self {
        Self::believed_for(MOMENT)
    }
}

impl Neighbours {
    /// With another moment than the usual one.
    #[must_use]
    pub fn believed_for(moment: Duration) -> Self {
        Self {
            said: RefCell::default(),
            moment,
        }
    }

    fn said_just_now(&self) -> RefMut<'_, Said> {
        let mut said = self.said.borrow_mut();
        if said.since.is_some_and(|when| when.elapsed() >= self.moment) {
            *said = Said::default();
        }
        said
    }

    /// Asks all loop devices of the machine together, where somebody is about to ask for some of them and then for
    /// the others.
    pub fn look_around(&self) -> Result<(), DeviceError> {
        let mut said = self.said_just_now();
        let mut loops = BTreeMap::new();
        for device in aliases::loops()? {
            if let Some(name) = aliases::loop_name(Path::new(SYSFS), device) {
                loops.insert(device, name);
            }
        }
        said.ask(&loops)
    }
}

impl Said {
    /// Asks loop devices, by their names, what they show; but for those that have just said it.
    fn ask<'a>(
        &mut self,
        loops: impl IntoIterator<Item = (&'a DeviceNumber, &'a OsString)>,
    ) -> Result<(), DeviceError> {
        let (mut asked, mut questions) = (Vec::new(), Vec::new());
        for (device, name) in loops {
            if !self.words.contains_key(device) {
                asked.push(*device);
                questions.push(about_loop(&Path::new("/dev").join(name)));
            }
        }
        let answers = answers(&questions, PATIENCE).map_err(DeviceError::Unasked)?;
        self.since = self.since.or_else(|| Some(Instant::now()));
        for (device, answer) in asked.into_iter().zip(answers) {
            let (device, word) = match answer.map(|answer| answer.shown) {
                // By the node's own number: it may be another device's.
                Some(Some((number, status))) => (number, Word::Shows(status)),
                Some(None) => (device, Word::Nothing),
                None => (device, Word::Silent),
            };
            self.words.insert(device, word);
        }
        Ok(())
    }
}
