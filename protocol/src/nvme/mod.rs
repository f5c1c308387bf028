//! NVM Express: queue entries, registers, data structures and typed commands.
//!
//! Everything here is a pure function of bytes. Wire structures carry the
//! specification's field names, have alignment 1 and little-endian fields, and
//! their sizes and offsets are asserted at compile time. Nothing here knows a
//! transport, a clock or a queue.
pub mod admin;
pub(crate) mod bits;
pub mod cqe;
pub mod feature;
pub mod identify;
pub mod io;
pub mod log;
pub mod registers;
pub mod sgl;
pub mod sqe;
pub mod status;

pub(crate) use bits::{bit_fields, wire_enum, wire_layout};
