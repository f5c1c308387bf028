//! Asynchronous events: the requests that are held, and what is to be reported.
//!
//! Reporting an event masks its type until the host reads the event's log page
//! with RAE clear (NVMe Base, Asynchronous Event Request command). What happens
//! meanwhile is kept, once per kind of event, and reported after that; reading
//! the log page also takes back what it has already told.
use super::permit::{Completion, Permit};
use raidfabric_protocol::nvme::admin::{AsyncEvent, EventType, Notice, SmartEvent};
use raidfabric_protocol::nvme::log::LogId;
use raidfabric_protocol::nvme::status::{Generic, Status};
use std::collections::VecDeque;

/// Most requests held at a time; AERL is one less.
pub(super) const REQUESTS_MAX: usize = 4;

/// An event that can be reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Report {
    kind: EventType,
    information: u8,
    log: LogId,
}

impl Report {
    /// The namespaces changed.
    pub(super) const NAMESPACES: Self = Self {
        kind: EventType::Notice,
        information: Notice::NamespaceAttribute.raw(),
        log: LogId::ChangedNamespaces,
    };

    /// The discovery log changed.
    pub(super) const DISCOVERY: Self = Self {
        kind: EventType::Notice,
        information: Notice::DiscoveryChange.raw(),
        log: LogId::Discovery,
    };

    /// A critical warning appeared.
    pub(super) const fn smart(event: SmartEvent) -> Self {
        Self { kind: EventType::SmartHealth, information: event.raw(), log: LogId::SmartHealth }
    }

    fn result(self) -> u64 {
        let event = AsyncEvent::default()
            .with_kind(self.kind.raw())
            .with_information(self.information)
            .with_log(self.log.raw());
        u64::from(event.raw())
    }
}

#[derive(Debug, Default)]
pub(super) struct Events {
    /// At most [`REQUESTS_MAX`].
    held: VecDeque<Permit>,
    /// Each at most once, so there are never more than there are kinds.
    pending: Vec<Report>,
    /// The last reported event of each type that its log has not been read for.
    masked: Vec<Report>,
}

impl Events {
    /// Keeps a request; gives it back if there are too many.
    pub(super) fn hold(&mut self, permit: Permit) -> Result<(), Permit> {
        if self.held.len() >= REQUESTS_MAX {
            return Err(permit);
        }
        self.held.push_back(permit);
        Ok(())
    }

    /// Remembers an event.
    pub(super) fn raise(&mut self, report: Report) {
        if !self.pending.contains(&report) {
            self.pending.push(report);
        }
    }

    /// Forgets an event that has become unwanted before it was reported.
    pub(super) fn withdraw(&mut self, report: Report) {
        self.pending.retain(|pending| *pending != report);
    }

    /// The host read a log page with RAE clear.
    pub(super) fn log_read(&mut self, log: LogId) {
        self.masked.retain(|masked| masked.log != log);
        self.pending.retain(|pending| pending.log != log);
    }

    /// The next request to complete, if there is one and something to report.
    pub(super) fn poll(&mut self) -> Option<Completion> {
        let is_masked = |report: &Report| self.masked.iter().any(|m| m.kind == report.kind);
        let at = self.pending.iter().position(|report| !is_masked(report))?;
        let permit = self.held.pop_front()?;
        let report = self.pending.remove(at);
        self.masked.push(report);
        Some(permit.complete(Status::SUCCESS, report.result()))
    }

    /// Aborts a held request.
    pub(super) fn abort(&mut self, cid: u16) -> Option<Completion> {
        let at = self.held.iter().position(|permit| permit.cid() == cid)?;
        let permit = self.held.remove(at)?;
        Some(permit.complete(Generic::AbortRequested.into(), 0))
    }

    /// The controller was reset: nothing is left to report, and the requests end.
    pub(super) fn reset(&mut self) -> impl Iterator<Item = Completion> {
        self.pending.clear();
        self.masked.clear();
        let status = Status::from(Generic::AbortedSqDeletion);
        std::mem::take(&mut self.held).into_iter().map(move |permit| permit.complete(status, 0))
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        // The controller goes with its admin connection, which the answers would need.
        for permit in self.held.drain(..) {
            permit.abandon();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_reported_once_and_masks_its_type() {
        let mut events = Events::default();
        events.raise(Report::NAMESPACES);
        assert!(events.poll().is_none(), "no request to answer");
        for cid in 0..4 {
            events.hold(Permit::new(cid)).unwrap();
        }
        assert_eq!(events.poll().unwrap().result(), 0x0004_0002);
        // The same again, and another of the same type: kept, not reported.
        events.raise(Report::NAMESPACES);
        events.raise(Report::NAMESPACES);
        assert!(events.poll().is_none());
        // Another type is not masked.
        events.raise(Report::smart(SmartEvent::Temperature));
        assert_eq!(events.poll().unwrap().result(), 0x0002_0101);
        // Reading the log tells what is pending for it, too.
        events.log_read(LogId::ChangedNamespaces);
        assert!(events.poll().is_none());
        events.raise(Report::NAMESPACES);
        assert_eq!(events.poll().unwrap().result(), 0x0004_0002);
    }

    #[test]
    fn another_event_of_a_masked_type_waits_for_the_log() {
        let mut events = Events::default();
        events.hold(Permit::new(0)).unwrap();
        events.hold(Permit::new(1)).unwrap();
        events.raise(Report::DISCOVERY);
        assert_eq!(events.poll().unwrap().result(), 0x0070_F002);
        events.raise(Report::NAMESPACES);
        assert!(events.poll().is_none());
        events.log_read(LogId::SmartHealth);
        assert!(events.poll().is_none(), "that was not the log");
        events.log_read(LogId::Discovery);
        assert_eq!(events.poll().unwrap().result(), 0x0004_0002);
    }

    #[test]
    fn requests_are_limited_aborted_and_ended_by_a_reset() {
        let mut events = Events::default();
        for cid in 0..4 {
            events.hold(Permit::new(cid)).unwrap();
        }
        let refused = events.hold(Permit::new(4)).unwrap_err();
        refused.abandon();
        let aborted = events.abort(2).unwrap();
        assert_eq!((aborted.cid(), aborted.status()), (2, Generic::AbortRequested.into()));
        assert!(events.abort(2).is_none());
        events.raise(Report::NAMESPACES);
        let ended: Vec<u16> = events.reset().map(|completion| completion.cid()).collect();
        assert_eq!(ended, [0, 1, 3]);
        events.hold(Permit::new(9)).unwrap();
        assert!(events.poll().is_none());
    }
}
