//! The host side of NVMe/TCP.
