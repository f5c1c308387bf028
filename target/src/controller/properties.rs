//! The controller's properties and what writing CC does.
//!
//! ```text
//!            CC.EN = 1                    CC.SHN ≠ 0               caller is done
//! disabled ────────────▶ ready ──────────────────────▶ shutting down ──────────▶ shut down
//!     ▲                    │ CC.EN = 0                      │ CC.EN = 0              │
//!     └────────────────────┴────────────────────────────────┴────────────────────────┘
//! ```
//!
//! A controller is ready as soon as it is enabled; only a shutdown takes time,
//! because what hosts wrote is made durable first.
use super::subsystem::Limits;
use raidfabric_protocol::fabrics::{Property, PropertySize};
use raidfabric_protocol::nvme::cqe::CQE_BYTES;
use raidfabric_protocol::nvme::registers::{
    Cap, Cc, Crto, Csts, ShutdownNotification, ShutdownStatus, Vs,
};
use raidfabric_protocol::nvme::sqe::SQE_BYTES;
use raidfabric_protocol::nvme::status::{Generic, Status};

/// The revision of the base specification that is served.
///
/// 2.0 and not 2.1: no host asks for anything because of 2.1, and everything
/// that 2.0 made mandatory (logs 00h, 05h, 12h and 13h, CRTO, CNS 08h) is there.
pub(super) const VERSION: Vs = Vs::V2_0;

/// CAP.TO and CRTO.CRWMT in 500 ms: enabling takes no time, so this is only a bound.
const READY_TIMEOUT: u8 = 15;

/// What a write to CC asks the caller to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// Nothing.
    None,
    /// The controller became ready.
    Enabled,
    /// A controller reset.
    Reset,
    /// A shutdown began.
    Shutdown(ShutdownNotification),
}

#[derive(Debug)]
pub(super) struct Properties {
    cap: Cap,
    cc: Cc,
    csts: Csts,
    is_io: bool,
}

impl Properties {
    pub(super) fn new(limits: &Limits, is_io: bool) -> Self {
        let cap = Cap::default()
            .with_mqes(limits.max_queue_entries.saturating_sub(1))
            .with_cqr(true)
            .with_to(READY_TIMEOUT)
            .with_css_nvm(true)
            .with_crwms(true);
        Self { cap, cc: Cc::default(), csts: Csts::default(), is_io }
    }

    /// Whether commands beside Fabrics are served.
    pub(super) fn is_ready(&self) -> bool {
        self.csts.rdy() && !self.csts.cfs()
    }

    /// Whether no shutdown was asked for.
    pub(super) fn is_running(&self) -> bool {
        self.is_ready() && self.csts.shst() == ShutdownStatus::Normal.raw()
    }

    /// Whether the controller waits for the caller to finish a shutdown.
    fn is_shutting_down(&self) -> bool {
        self.csts.shst() == ShutdownStatus::Occurring.raw()
    }

    /// The controller has failed for good.
    pub(super) fn set_fatal(&mut self) {
        self.csts = self.csts.with_cfs(true);
    }

    /// What was to be made durable is. Does nothing if no shutdown is under way.
    pub(super) fn finish_shutdown(&mut self) {
        if self.is_shutting_down() {
            self.csts = self.csts.with_shst(ShutdownStatus::Complete.raw());
        }
    }

    /// Property Get.
    pub(super) fn get(&self, offset: u32, size: PropertySize) -> Result<u64, Status> {
        let property = Property::from_raw(offset).ok_or(Generic::InvalidField)?;
        if property.size() != size {
            return Err(Generic::InvalidField.into());
        }
        Ok(match property {
            Property::Cap => self.cap.raw(),
            Property::Vs => VERSION.raw().into(),
            Property::Cc => self.cc.raw().into(),
            Property::Csts => self.csts.raw().into(),
            // No subsystem reset (CAP.NSSRS is clear): reads as zero.
            Property::Nssr => 0,
            Property::Crto => Crto::default().with_crwmt(u16::from(READY_TIMEOUT)).raw().into(),
        })
    }

    /// Property Set: only CC can be.
    pub(super) fn set(
        &mut self,
        offset: u32,
        size: PropertySize,
        value: u64,
    ) -> Result<Change, Status> {
        if Property::from_raw(offset) != Some(Property::Cc) || size != PropertySize::Four {
            return Err(Generic::InvalidField.into());
        }
        // The upper half of VALUE is reserved for a property of 4 bytes.
        let new = Cc::from_raw(value as u32);
        let notification =
            ShutdownNotification::from_raw(new.shn()).ok_or(Generic::InvalidField)?;
        let old = self.cc;
        if new.en() && !old.en() {
            self.check_enable(new)?;
        }
        self.cc = new;
        if old.en() && !new.en() {
            self.csts = Csts::default();
            return Ok(Change::Reset);
        }
        let mut change = Change::None;
        if new.en() && !old.en() {
            self.csts = Csts::default().with_rdy(true);
            change = Change::Enabled;
        }
        let asks = notification != ShutdownNotification::None;
        if asks && self.csts.shst() == ShutdownStatus::Normal.raw() {
            self.csts = self.csts.with_shst(ShutdownStatus::Occurring.raw());
            change = Change::Shutdown(notification);
        }
        Ok(change)
    }

    /// Whether the controller can run as CC says.
    fn check_enable(&self, cc: Cc) -> Result<(), Status> {
        let supported = cc.css() == 0 && cc.mps() == 0 && cc.ams() == 0 && !cc.crime();
        // Entry sizes mean nothing to a discovery controller, and some hosts leave them 0.
        let sizes = 1 << cc.iosqes() == SQE_BYTES && 1 << cc.iocqes() == CQE_BYTES;
        if supported && (sizes || !self.is_io) { Ok(()) } else { Err(Generic::InvalidField.into()) }
    }
}
