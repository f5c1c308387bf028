//! The RAID engine.

pub mod assemble;
pub mod device;
pub mod metadata;
