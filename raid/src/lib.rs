//! The RAID engine: geometry, members and arrays.
//!
//! It knows nothing of networks, runs on any executor, spawns nothing, and reaches storage only
//! through [`drive::Drive`].

#![deny(unsafe_code)]

pub mod array;
#[allow(unsafe_code)]
pub mod buffer;
pub mod drive;
pub mod geometry;
pub mod memory;
pub mod mesh;

#[cfg(test)]
mod sim;
