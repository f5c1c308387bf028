//! Tests that cross the crates.
