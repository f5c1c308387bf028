//! NVMe, NVMe over Fabrics and NVMe/TCP on the wire: bytes in, typed values out, and back.
pub mod nvme;
