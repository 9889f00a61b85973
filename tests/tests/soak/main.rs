//! Pods that live and are killed, many at a time: nothing of them is lost, and in the end nothing is
//! left. `make soak` takes hours for it where `make test` takes a minute.

mod agent;
mod census;
mod ground;
mod kills;
mod lane;
mod life;

use std::thread;

use runcrust_tests::Delegate;
use runcrust_tests::random::{Random, seed};

use crate::ground::Ground;
use crate::kills::Tally;
use crate::lane::Lane;

/// So many pods live at a time, half of them on each delegate.
const LANES: usize = 8;

/// So many live where nobody says otherwise.
const LIVES: usize = 60;

/// `RUNCRUST_SOAK`, or what `make test` has time for.
fn lives() -> usize {
    std::env::var("RUNCRUST_SOAK").map_or(LIVES, |lives| {
        lives.parse().expect("RUNCRUST_SOAK is a number")
    })
}

#[test]
fn pods_live_and_are_killed_and_nothing_is_left() {
    let seed = seed();
    let grounds = [Delegate::Runc, Delegate::Crun].map(Ground::new);
    let mut lanes: Vec<Lane<'_>> = (0..LANES)
        .map(|index| Lane::new(&grounds[index % 2], Random::new(seed + index as u64)))
        .collect();
    let (all, mut lived) = (lives(), 0);
    // The first of these batches is what the others are measured by.
    let batch = (all / 20).max(2 * LANES);
    while lived < all {
        let now = batch.min(all - lived);
        thread::scope(|scope| {
            for (index, lane) in lanes.iter_mut().enumerate() {
                let share = (now + LANES - 1 - index) / LANES;
                scope.spawn(move || (0..share).for_each(|_| lane.live()));
            }
        });
        lived += now;
        for lane in &lanes {
            lane.assert_whole();
        }
        let tally: Tally = lanes.iter().map(Lane::tally).sum();
        println!("{lived} of {all} pods; {tally}");
        for ground in &grounds {
            println!("  {}", ground.take_census());
        }
    }
    let tally: Tally = lanes.iter().map(Lane::tally).sum();
    assert!(
        tally.killed() > all / 4,
        "hardly anybody was killed: {tally}"
    );
}
