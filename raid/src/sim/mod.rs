//! The engine over simulated drives: a run is decided by its seed, and checked against a model.
//!
//! * `world`: executor with virtual time, several cores, message delays;
//! * `disk`: drives with caches, reordering, torn writes, errors;
//! * `model`: the values each block may have;
//! * `run`: one array's life: boots, clients, power cuts, deaths of the process, clean stops;
//! * `tests`: many lives, and an error at every call of some.
//!
//! A failing run prints its seed. `RAIDFABRIC_SIM_SEED=n` repeats that one,
//! `RAIDFABRIC_SIM_TRACE=1` tells what happens in it, `RAIDFABRIC_SIM_SEEDS=n` runs that many.

mod disk;
mod model;
pub(crate) mod mutations;
mod run;
mod tests;
mod world;
