//! What is killed, or fails, at some step of its way.

mod choice;
mod failing;
mod killed;
mod moments;
mod once;
mod row;
mod rows;
mod scene;
