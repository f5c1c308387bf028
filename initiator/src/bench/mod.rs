//! The load generator: threads that keep queues full, measure, and verify.
//!
//! Each worker is a thread with its own runtime, pinned if asked, and its own connections. It
//! runs their engines in turn: fill every queue, send, receive, record; it spins for a while
//! when nothing arrives and then sleeps. Nothing is allocated per operation.
//!
//! A run has up to four phases: *filling* (verification of reads needs known contents), *warming
//! up*, *measuring* and *checking* (everything written is read back). Only operations that end
//! while measuring count.
//!
//! It refuses to write unless the workload says that the data may be destroyed.

mod pattern;
mod report;
mod stream;
mod sweep;
mod worker;
mod workload;

pub use report::{Latency, Report, Side, Verification};
pub use sweep::{SweepReport, SweepRow, sweep};
pub use worker::run;
pub use workload::{Access, Phase, Progress, Workload};
