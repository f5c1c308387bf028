//! The daemon and its command line: transport, subsystems, per-core runtime, configuration.

pub mod config;
pub mod controller;
pub mod memory;
pub mod runtime;
pub mod workers;
