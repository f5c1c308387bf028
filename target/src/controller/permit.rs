//! The right to complete one command.
//!
//! A [`Permit`] is made when a command arrives and is used up by completing it:
//! it cannot be copied, so no command is answered twice, and dropping it unused
//! is a fault that debug builds stop at, so that none is forgotten. When its
//! connection goes away the right ends with it: [`Permit::abandon`].
use raidfabric_protocol::nvme::cqe::Cqe;
use raidfabric_protocol::nvme::status::Status;

/// The right, and the duty, to complete one command.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a command must be completed, or abandoned with its connection"]
pub struct Permit {
    cid: u16,
    used: bool,
}

impl Permit {
    /// For a command that just arrived under this command identifier.
    pub fn new(cid: u16) -> Self {
        Self { cid, used: false }
    }

    /// The command identifier.
    pub fn cid(&self) -> u16 {
        self.cid
    }

    /// Completes the command; `result` is DW0 (low half) and DW1.
    pub fn complete(mut self, status: Status, result: u64) -> Completion {
        self.used = true;
        Completion { cid: self.cid, status, result }
    }

    /// Completes the command with success and no result.
    pub fn succeed(self) -> Completion {
        self.complete(Status::SUCCESS, 0)
    }

    /// Gives up the right because the connection that waits for the answer is gone.
    pub fn abandon(mut self) {
        self.used = true;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        debug_assert!(
            self.used || std::thread::panicking(),
            "command {:#06x} was neither completed nor abandoned",
            self.cid
        );
    }
}

/// A completion to send; made only by using up a [`Permit`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "a completion must be sent"]
pub struct Completion {
    cid: u16,
    status: Status,
    result: u64,
}

impl Completion {
    /// The command identifier.
    pub fn cid(&self) -> u16 {
        self.cid
    }

    /// How the command ended.
    pub fn status(&self) -> Status {
        self.status
    }

    /// DW0 (low half) and DW1.
    pub fn result(&self) -> u64 {
        self.result
    }

    /// The queue entry, with the submission queue head that the queue is at.
    pub fn into_cqe(self, sqhd: u16) -> Cqe {
        Cqe::new(self.cid, self.status).with_result(self.result).with_sqhd(sqhd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use raidfabric_protocol::nvme::status::Generic;

    #[test]
    fn a_completion_carries_what_it_was_given() {
        let completion = Permit::new(7).complete(Generic::InvalidField.into(), 0x1_0000_0002);
        assert_eq!((completion.cid(), completion.result()), (7, 0x1_0000_0002));
        let cqe = completion.into_cqe(3);
        assert_eq!((cqe.cid.get(), cqe.sqhd.get(), cqe.result()), (7, 3, 0x1_0000_0002));
        assert_eq!(cqe.status(), Generic::InvalidField.into());
    }

    #[test]
    fn an_abandoned_permit_may_be_dropped() {
        Permit::new(1).abandon();
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "neither completed nor abandoned")]
    fn a_forgotten_permit_is_a_fault() {
        drop(Permit::new(1));
    }
}
