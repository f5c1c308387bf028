//! The engine over simulated drives: a life is decided by its seed, and checked against a model.
//!
//! * `world`: executor with virtual time, several cores, message delays;
//! * `image`, `disk`, `drive`, `faults`: drives with caches, reordering, torn writes, errors;
//! * `value`, `model`: what each sector of the array may contain;
//! * `ground`: what was really done to the members, by which errors are judged;
//! * `shape`, `life`, `boot`: an array and its boots, power cuts, deaths, clean stops;
//! * `medium`, `keeper`, `control`: what the control plane does;
//! * `operator`: who fails members and adds drives;
//! * `client`: hosts, whose every answer is judged;
//! * `check`: copies and parity, by plain arithmetic;
//! * `runner`, `tests`, `mutations`: many lives, and faults in the engine that must be noticed.
//!
//! A failing run prints its seed. `RAIDFABRIC_SIM_SEED=n` repeats that one,
//! `RAIDFABRIC_SIM_TRACE=1` tells what happens in it, `RAIDFABRIC_SIM_SEEDS=n` runs that many.

#![allow(dead_code, reason = "what the next levels need is there already")]

mod boot;
mod check;
mod client;
mod control;
mod disk;
mod drive;
mod faults;
mod ground;
mod image;
mod keeper;
mod life;
mod medium;
mod model;
pub(crate) mod mutations;
mod operator;
mod runner;
mod shape;
mod tests;
mod value;
pub(crate) mod world;
