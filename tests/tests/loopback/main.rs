//! The initiator against a target in the same process, over loopback.

#![allow(clippy::unwrap_used)]

mod admin;
mod composed;
mod connect;
mod discovery;
mod ended;
mod faults;
mod files;
mod hostile;
mod io;
mod losses;
mod model;
mod races;
mod shapes;
mod stuck;
