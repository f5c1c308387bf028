//! NVMe, NVMe over Fabrics and NVMe/TCP on the wire: bytes in, typed values out, and back.
//!
//! Nothing here does I/O, reads a clock or knows an executor.

pub mod fabrics;
pub mod nvme;
pub mod tcp;
