//! The configuration file: reading it, judging it, and saying what is wrong with it.

mod types;

pub use types::{
    Array, Config, CoreSelection, Hosts, Level, Limits, Member, Memory, Namespace, Ring, Subsystem,
};
