//! The daemon and its command line: transport, subsystems, per-core runtime, configuration.
//!
//! ```text
//!  cli ──▶ server (control thread) ──▶ core (one thread each) ──▶ transport ──▶ volume ──▶ raid
//!             │                           │                          │
//!          config                      runtime (io_uring)     association ──▶ controller
//! ```

pub mod association;
pub mod cli;
pub mod config;
pub mod controller;
pub mod core;
pub mod memory;
pub mod runtime;
pub mod server;
pub mod transport;
pub mod volume;
pub mod workers;
