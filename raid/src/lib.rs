//! The RAID engine.
