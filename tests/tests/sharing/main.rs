//! Two pods, one device (KEP-2857, "Potential data corruption for co-scheduled pods"; KEP-2485).

mod hung;
mod modes;
mod others;
mod readers;
mod standalone;
mod superblock;
