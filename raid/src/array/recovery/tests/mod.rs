//! Long tasks as a whole, on all levels, over drives that fail.

mod check;
mod rebuild;
mod rig;
mod speed;
mod sync;
mod tasks;
