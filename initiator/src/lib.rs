//! The host side of NVMe/TCP: connect, discover, read and write.
//!
//! * [`Controller`]: an association with a subsystem. Connects, enables, keeps alive, identifies,
//!   reads logs, sets features, opens I/O queues.
//! * [`IoQueue`], [`Volume`]: async commands from any number of tasks over one connection.
//! * [`queue::Queue`]: the engine below them, without tasks: commands are submitted, and their
//!   completions collected, in batches. What a load generator uses.
//! * [`raw::Connection`]: bytes and PDUs as the caller likes them, for tests.
//! * [`bench`]: the load generator.
//!
//! Runs on tokio, also on a current-thread runtime. No task and no allocation per command in the
//! engine; commands that are ready together leave in one write. What the controller does wrong is
//! found by the protocol machine and named in the [`Error`]; a command that ended badly carries
//! its NVMe status.
//!
//! Not here: multipath, reconnecting, TLS.

pub mod bench;
mod controller;
mod error;
mod handle;
mod namespace;
mod options;
mod output;
pub mod queue;
pub mod raw;
mod volume;

pub use controller::Controller;
pub use error::Error;
pub use handle::{Done, IoQueue};
pub use namespace::Namespace;
pub use options::{Host, HostBuilder, Options};
pub use volume::Volume;
