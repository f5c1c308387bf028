//! From drives to an array: looking at them, deciding what they are together, creating
//! an array on blank ones, and keeping the superblocks true while it runs.
//!
//! The way of an array's start:
//!
//! 1. [`examine`] reads what each drive holds.
//! 2. [`decide`] (or [`plan_create`], [`plan_assemble`]) works out, from that alone, what
//!    the drives are: pure functions, which touch nothing and refuse by name.
//! 3. [`create`] or [`ArrayHandle::assemble`] takes the plan and the drives.
//! 4. [`ArrayHandle`] writes the superblocks from then on.
//!
//! Drives come and go through [`ArrayHandle::add`] and [`ArrayHandle::remove`].
//!
//! An array can be the member of another: [`Nested`].
//!
//! **Creation is all or nothing.** The private headers and the zeros come first, then a
//! superblock at event count 0 on each member, then bitmaps and logs, then event count 1 on
//! each. Until the
//! first count of 1 there has been no array, and nothing was ever acknowledged: drives
//! left there by a crash count as blank, unless all of them got that far, which is an
//! array. A count of 1 anywhere means that every member has its superblock.

mod create;
mod describe;
mod error;
mod examine;
mod handle;
mod intent;
mod keep;
mod membership;
mod nested;
mod plan;
mod report;
mod standing;

pub use create::{CreatePlan, NewArray, create, plan_create};
pub use describe::{Description, Found, describe, find_members, local_drives, wipe};
pub use error::{AddError, AssembleError, CreateError, NotMember, UpdateError};
pub use examine::{Examined, examine, examine_medium};
pub use handle::{ArrayHandle, Member, Recorded};
pub use intent::{ReplayFailure, Replayed};
pub use nested::{Nested, NestedError, peek};
pub use plan::{
    ArrayInfo, AssemblyPlan, Decision, Expected, LeftOver, SlotPlan, decide, plan_assemble,
};
pub use report::Report;

#[cfg(test)]
mod crash_tests;
#[cfg(test)]
mod decision_tests;
#[cfg(test)]
mod nested_tests;

#[cfg(test)]
pub(crate) mod test_medium;
#[cfg(test)]
mod tests;
