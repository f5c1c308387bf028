//! Tests of the NVMe/TCP layer as a whole; each file has its subject.

mod framing;
mod golden;
mod hostile;
mod malformed;
mod pair;
