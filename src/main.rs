//! The program; what it does is the library's, so that its manual can be made from the same.

#![no_main]

use crust_blockfs::sys::arena::Arena;

#[global_allocator]
static ALLOCATOR: Arena = Arena::new();

crust_blockfs::program!(runcrust::main);
