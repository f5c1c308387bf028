//! Tests that cross the crates: the initiator against a target in the same process, over loopback.
//!
//! * [`setup`]: a configuration, and the server that is started from it.
//! * [`host`]: hosts that behave, and raw connections up to the point where they stop doing so.
//! * [`data`]: patterns and random numbers that come out the same in each run.
//! * [`replay`]: crashes of the real I/O path, from what a guest recorded.
//!
//! The tests themselves are in `tests/`, one file for each subject. They touch the target only as a
//! host or an operator can, and look at its counters for what it has left behind.

#![allow(clippy::unwrap_used)]

pub mod data;
pub mod host;
pub mod replay;
pub mod setup;
