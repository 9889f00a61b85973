//! Pods of crustlet run while it and `crust_ops` are killed. Each pod verifies the data on its volumes, and in the end
//! nothing may be left, and all counters have to match.

mod containerd_proxy;
mod counters;
mod killer;
mod leftovers;
mod node;
mod pair;
mod pair_sequence;

use std::thread;

use runcrust_tests::on_each_delegate;
use runcrust_tests::random::{Random, seed};

use killer::Killer;
use node::AgentNode;
use pair_sequence::PairSequence;

/// Number of pairs of pods that run at the same time.
const SEQUENCES: usize = 4;

/// Number of pairs between two checks of leftovers and counters. The last two pairs run undisturbed.
const BATCH: usize = 5;

/// Default number of pods.
const PODS: usize = 10;

/// Returns the number of pods: `RUNCRUST_SOAK_PODS`, or what `make test` has time for.
fn pod_count() -> usize {
    std::env::var("RUNCRUST_SOAK_PODS").map_or(PODS, |pods| {
        pods.parse().expect("RUNCRUST_SOAK_PODS is a number")
    })
}

on_each_delegate! {
    fn pods_live_while_crustlet_and_crust_ops_are_killed(delegate: Delegate) {
        let seed = seed();
        let node = AgentNode::new(delegate);
        let mut sequences: Vec<PairSequence<'_>> = (0..SEQUENCES)
            .map(|index| PairSequence::new(&node, index, Random::new(seed + index as u64)))
            .collect();
        let mut killer = Killer::new(&node, Random::new(seed + SEQUENCES as u64));
        let (all, mut finished) = (pod_count().div_ceil(2), 0);
        // On a fast machine all pods may be done before enough kills have happened.
        while finished < all || killer.kills() <= all / 2 {
            let disturbed = (BATCH - 2).min(all.saturating_sub(finished).max(1));
            killer.during(|| {
                thread::scope(|scope| {
                    for (index, sequence) in sequences.iter_mut().enumerate() {
                        let share = (disturbed + SEQUENCES - 1 - index) / SEQUENCES;
                        scope.spawn(move || (0..share).for_each(|_| sequence.run_pair()));
                    }
                });
            });
            let (one, others) = sequences.split_first_mut().expect("sequences");
            node.check_counters(one, &mut others[0]);
            finished += disturbed + 2;
            println!("{delegate}: {} pods; {killer}; {}", 2 * finished, node.assert_no_leftovers());
        }
    }
}
