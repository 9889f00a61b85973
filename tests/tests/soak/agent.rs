//! Pods of crustlet's that live while it and `crust_ops` are killed: each finds on its volumes what was written there,
//! and in the end nothing is left and all that was counted adds up.

mod accounts;
mod census;
mod lane;
mod line;
mod pair;
mod site;
mod trouble;

use std::thread;

use runcrust_tests::on_each_delegate;
use runcrust_tests::random::{Random, seed};

use lane::Lane;
use site::Site;
use trouble::Trouble;

/// So many pairs of pods live at a time.
const LANES: usize = 4;

/// So many pairs live between two looks at what is left: the last two retry_lost_race.
const BATCH: usize = 5;

/// So many pods live where nobody says otherwise.
const PODS: usize = 10;

/// `RUNCRUST_SOAK_PODS`, or what `make test` has time for.
fn pods() -> usize {
    std::env::var("RUNCRUST_SOAK_PODS").map_or(PODS, |pods| {
        pods.parse().expect("RUNCRUST_SOAK_PODS is a number")
    })
}

on_each_delegate! {
    fn pods_live_while_crustlet_and_crust_ops_are_killed(delegate: Delegate) {
        let seed = seed();
        let site = Site::new(delegate);
        let mut lanes: Vec<Lane<'_>> = (0..LANES)
            .map(|index| Lane::new(&site, index, Random::new(seed + index as u64)))
            .collect();
        let mut trouble = Trouble::new(&site, Random::new(seed + LANES as u64));
        let (all, mut lived) = (pods().div_ceil(2), 0);
        // On a fast machine pods have lived before anybody was killed.
        while lived < all || trouble.kills() <= all / 2 {
            let disturbed = (BATCH - 2).min(all.saturating_sub(lived).max(1));
            trouble.during(|| {
                thread::scope(|scope| {
                    for (index, lane) in lanes.iter_mut().enumerate() {
                        let share = (disturbed + LANES - 1 - index) / LANES;
                        scope.spawn(move || (0..share).for_each(|_| lane.live()));
                    }
                });
            });
            let (one, others) = lanes.split_first_mut().expect("lanes");
            site.accounted(one, &mut others[0]);
            lived += disturbed + 2;
            println!("{delegate}: {} pods; {trouble}; {}", 2 * lived, site.take_census());
        }
    }
}
