//! NVMe over Fabrics: its commands, Connect data, names and the discovery log.
//!
//! Like [`crate::nvme`], pure functions of bytes. The transport below (PDUs) is
//! not known here.
pub mod command;
pub mod discovery;
pub mod nqn;

pub use command::{
    Connect, ConnectData, ConnectResponse, FabricsCommand, InvalidParameter, Property, PropertySize,
};
