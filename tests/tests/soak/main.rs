//! Many pods at a time, some of which are killed. No data may be lost, and in the end nothing may be left. `make test`
//! runs this for a minute, `make soak` for hours.

mod agent;
mod kills;
mod leftovers;
mod life;
mod node;
mod pod_sequence;

use std::thread;

use runcrust_tests::Delegate;
use runcrust_tests::random::{Random, seed};

use crate::kills::Tally;
use crate::node::SoakNode;
use crate::pod_sequence::PodSequence;

/// Number of pods that run at the same time, half of them with each delegate.
const SEQUENCES: usize = 8;

/// Default number of pods.
const PODS: usize = 60;

/// Returns the number of pods: `RUNCRUST_SOAK`, or what `make test` has time for.
fn pod_count() -> usize {
    std::env::var("RUNCRUST_SOAK").map_or(PODS, |pods| {
        pods.parse().expect("RUNCRUST_SOAK is a number")
    })
}

#[test]
fn pods_live_and_are_killed_and_nothing_is_left() {
    let seed = seed();
    let soak_nodes = [Delegate::Runc, Delegate::Crun].map(SoakNode::new);
    let mut sequences: Vec<PodSequence<'_>> = (0..SEQUENCES)
        .map(|index| PodSequence::new(&soak_nodes[index % 2], Random::new(seed + index as u64)))
        .collect();
    let (all, mut finished) = (pod_count(), 0);
    // Memory and descriptors after the first batch are compared with those after the others.
    let batch = (all / 20).max(2 * SEQUENCES);
    while finished < all {
        let now = batch.min(all - finished);
        thread::scope(|scope| {
            for (index, sequence) in sequences.iter_mut().enumerate() {
                let share = (now + SEQUENCES - 1 - index) / SEQUENCES;
                scope.spawn(move || (0..share).for_each(|_| sequence.run_pod()));
            }
        });
        finished += now;
        for sequence in &sequences {
            sequence.assert_consistent();
        }
        let tally: Tally = sequences.iter().map(PodSequence::tally).sum();
        println!("{finished} of {all} pods; {tally}");
        for soak_node in &soak_nodes {
            println!("  {}", soak_node.assert_no_leftovers());
        }
    }
    let tally: Tally = sequences.iter().map(PodSequence::tally).sum();
    assert!(tally.killed() > all / 4, "too few kills: {tally}");
}
