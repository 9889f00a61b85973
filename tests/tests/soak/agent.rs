//! Pods of crustlet run while it and `crust_ops` are killed. Each pod verifies the data on its volumes, and in the end
//! nothing may be left, and all counters have to match.

mod containerd_proxy;
mod counters;
mod killer;
mod lane;
mod leftovers;
mod node;
mod pair;

use std::thread;

use runcrust_tests::on_each_delegate;
use runcrust_tests::random::{Random, seed};

use killer::Killer;
use lane::Lane;
use node::AgentNode;

/// Number of pairs of pods that run at the same time.
const LANES: usize = 4;

/// Number of pairs between two checks of leftovers and counters. The last two pairs run undisturbed.
const BATCH: usize = 5;

/// Default number of pods.
const PODS: usize = 10;

/// Returns the number of pods: `RUNCRUST_SOAK_PODS`, or what `make test` has time for.
fn pods() -> usize {
    std::env::var("RUNCRUST_SOAK_PODS").map_or(PODS, |pods| {
        pods.parse().expect("RUNCRUST_SOAK_PODS is a number")
    })
}

on_each_delegate! {
    fn pods_live_while_crustlet_and_crust_ops_are_killed(delegate: Delegate) {
        let seed = seed();
        let node = AgentNode::new(delegate);
        let mut lanes: Vec<Lane<'_>> = (0..LANES)
            .map(|index| Lane::new(&node, index, Random::new(seed + index as u64)))
            .collect();
        let mut killer = Killer::new(&node, Random::new(seed + LANES as u64));
        let (all, mut lived) = (pods().div_ceil(2), 0);
        // On a fast machine all pods may be done before enough kills have happened.
        while lived < all || killer.kills() <= all / 2 {
            let disturbed = (BATCH - 2).min(all.saturating_sub(lived).max(1));
            killer.during(|| {
                thread::scope(|scope| {
                    for (index, lane) in lanes.iter_mut().enumerate() {
                        let share = (disturbed + LANES - 1 - index) / LANES;
                        scope.spawn(move || (0..share).for_each(|_| lane.live()));
                    }
                });
            });
            let (one, others) = lanes.split_first_mut().expect("lanes");
            node.check_counters(one, &mut others[0]);
            lived += disturbed + 2;
            println!("{delegate}: {} pods; {killer}; {}", 2 * lived, node.assert_no_leftovers());
        }
    }
}
