//! Tests of the NVMe/TCP layer as a whole; each file has its subject.

mod pair;
