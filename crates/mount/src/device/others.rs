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
    said: RefCell<BTreeMap<DeviceNumber, Said>>,
    moment: Duration,
}

/// What one of them said, and when.
#[derive(Debug, Clone, Copy)]
struct Said {
    what: Word,
    when: Instant,
}

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
    let word = |device: DeviceNumber| said.get(&device).map(|it| it.what);
    let loops_of = |device| match word(device) {
        // There is no other one below it that could be silent.
        Some(Word::Shows(_)) => (device, BTreeMap::new()),
        _ => (device, aliases::loops_among(sysfs, device)),
    };
    let devices: Vec<_> = devices.into_iter().map(loops_of).collect();
    let loops = devices.iter().flat_map(|(_, loops)| loops);
    let answers = ask(loops, &said)?;
    said.extend(answers);
    let word = |device: DeviceNumber| said.get(&device).map(|it| it.what);
    let mut conflicting = Vec::new();
    for (device, loops) in devices {
        let is_silent = |it: &&DeviceNumber| matches!(word(**it), Some(Word::Silent));
        if let Some(silent) = loops.keys().find(is_silent) {
            tracing::warn!(%device, %silent, "what it shows can't be told: its file doesn't answer");
            continue;
        }
        let shows = |device| match word(device) {
            Some(Word::Shows(status)) => Some(status),
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

    fn said_just_now(&self) -> RefMut<'_, BTreeMap<DeviceNumber, Said>> {
        let mut said = self.said.borrow_mut();
        said.retain(|_, it| it.when.elapsed() < self.moment);
        said
    }

    /// Asks all loop devices of the machine together, where somebody is about to ask for some of them and then for
    /// the others.
    pub fn look_around(&self) -> Result<(), DeviceError> {
        let mut said = self.said_just_now();
        let named = |device| Some((device, aliases::loop_name(Path::new(SYSFS), device)?));
        let loops = aliases::loops()?.into_iter();
        let unasked = loops.filter(|device| !said.contains_key(device));
        let loops: BTreeMap<_, _> = unasked.filter_map(named).collect();
        let answers = ask(&loops, &said)?;
        said.extend(answers);
        Ok(())
    }
}

/// Asks loop devices, by their names, what they show; but for those that have just said it.
fn ask<'a>(
    loops: impl IntoIterator<Item = (&'a DeviceNumber, &'a OsString)>,
    said: &BTreeMap<DeviceNumber, Said>,
) -> Result<BTreeMap<DeviceNumber, Said>, DeviceError> {
    let loops = loops.into_iter();
    let loops: BTreeMap<_, _> = loops
        .filter(|(device, _)| !said.contains_key(device))
        .collect();
    let node = |name| Path::new("/dev").join(name);
    let questions: Vec<_> = loops.values().map(|name| about_loop(&node(name))).collect();
    let answers = answers(&questions, PATIENCE).map_err(DeviceError::Unasked)?;
    let when = Instant::now();
    let said = loops.into_keys().zip(answers).map(|(device, answer)| {
        let (number, what) = match answer.map(|answer| answer.shown) {
            // By the node's own number: it may be another device's.
            Some(Some((number, status))) => (number, Word::Shows(status)),
            Some(None) => (*device, Word::Nothing),
            None => (*device, Word::Silent),
        };
        (number, Said { what, when })
    });
    Ok(said.collect())
}
