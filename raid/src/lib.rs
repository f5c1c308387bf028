//! The RAID engine: geometry, on-disk metadata, members and arrays.
//!
//! It knows nothing of networks, runs on any executor, spawns nothing, and reaches storage only
//! through [`drive::Drive`] (data) and [`device::Medium`] (metadata).

#![deny(unsafe_code)]

pub mod array;
pub mod assemble;
#[allow(unsafe_code)]
pub mod buffer;
pub mod device;
pub mod drive;
pub mod geometry;
pub mod memory;
pub mod mesh;
pub mod metadata;
mod mutation;
#[allow(unsafe_code)]
pub mod parity;
pub mod replay;
pub mod throttle;

#[cfg(test)]
mod sim;
