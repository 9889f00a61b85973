//! Programs that are killed, or fail, at each of their steps.

mod choice;
mod failing;
mod fsgroup_once;
mod killed;
mod moments;
mod row;
mod rows;
mod scene;
