//! Two pods on one device (KEP-2857, "Potential data corruption for co-scheduled pods"; KEP-2485).

mod access_modes;
mod external_use;
mod hung;
mod readers;
mod standalone;
mod superblock;
