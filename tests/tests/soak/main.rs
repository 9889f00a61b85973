//! Many pods at a time, some of which are killed. No data may be lost, and in the end nothing may be left. `make test`
//! runs this for a minute, `make soak` for hours.

mod agent;
mod kills;
mod lane;
mod leftovers;
mod life;
mod node;

use std::thread;

use runcrust_tests::Delegate;
use runcrust_tests::random::{Random, seed};

use crate::kills::Tally;
use crate::lane::Lane;
use crate::node::SoakNode;

/// Number of pods that run at the same time, half of them with each delegate.
const LANES: usize = 8;

/// Default number of pods.
const LIVES: usize = 60;

/// Returns the number of pods: `RUNCRUST_SOAK`, or what `make test` has time for.
fn lives() -> usize {
    std::env::var("RUNCRUST_SOAK").map_or(LIVES, |lives| {
        lives.parse().expect("RUNCRUST_SOAK is a number")
    })
}

#[test]
fn pods_live_and_are_killed_and_nothing_is_left() {
    let seed = seed();
    let grounds = [Delegate::Runc, Delegate::Crun].map(SoakNode::new);
    let mut lanes: Vec<Lane<'_>> = (0..LANES)
        .map(|index| Lane::new(&grounds[index % 2], Random::new(seed + index as u64)))
        .collect();
    let (all, mut lived) = (lives(), 0);
    // Memory and descriptors after the first batch are compared with those after the others.
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
            lane.assert_consistent();
        }
        let tally: Tally = lanes.iter().map(Lane::tally).sum();
        println!("{lived} of {all} pods; {tally}");
        for soak_node in &grounds {
            println!("  {}", soak_node.assert_no_leftovers());
        }
    }
    let tally: Tally = lanes.iter().map(Lane::tally).sum();
    assert!(tally.killed() > all / 4, "too few kills: {tally}");
}
