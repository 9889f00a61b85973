//! Programs that are killed, or fail, at each of their steps.

mod choice;
mod failing;
mod killed;
mod moments;
mod once;
mod row;
mod rows;
mod scene;
