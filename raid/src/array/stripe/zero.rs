//! Zeroing of a parity level, on the owner of the shard: whole rows by zeroing all their members,
//! since the parity of zeros is zeros; the rest as a write of zeros.
//!
//! Whole rows are right afterwards whatever they were before. Their members are zeroed with one
//! operation each, as rows follow each other on them; but row by row where there is a log, since a
//! record is for one row, and nobody may wait for the log's space while he holds some of it. Then
//! each row is held only while it is zeroed.

use std::future::poll_fn;
use std::ops::Range;

use super::super::error::ArrayError;
use super::super::fan::fan_out;
use super::super::intent::LogRecord;
use super::super::membership::Parking;
use super::super::write::{Armed, Zeroing};
use super::super::{Array, Done};
use super::Ticket;
use super::parked::{ParkedJob, Redo};
use super::pass::Outcome;
use super::plan::{Roles, Slice};
use super::queue::Kind;

use crate::drive::{Drive, DriveError};
use crate::geometry::Place;
use crate::metadata::checks::{Check, Checks};

/// What has come of the zeroing of some rows.
#[derive(Default)]
struct Zeroed {
    outcome: Outcome,
    /// What waits for a drive to come back.
    parked: Vec<ParkedJob>,
}

impl<D: Drive> Array<D> {
    /// Zeroes a range within a shard of a parity level, on its owner.
    pub(in crate::array) async fn stripe_zero(
        &self,
        offset_bytes: u64,
        len_bytes: u64,
        kind: Zeroing,
    ) -> Done {
        if self.shared.intent.has_log() {
            return self.zero_row_by_row(offset_bytes, len_bytes, kind).await;
        }
        let stripe = self.stripe();
        let permit = self.shared.begin_write(self.endpoint.core()).await?;
        // Every ticket is taken before the first one is waited for.
        let mut whole: Vec<(u64, Ticket<'_>)> = Vec::new();
        let mut rest: Vec<(u64, Ticket<'_>)> = Vec::new();
        for part in stripe.row_parts(offset_bytes, len_bytes) {
            let bytes = u64::from(part.len);
            if bytes == stripe.shape.row_bytes {
                let ticket = stripe.rows.enter(part.row, Kind::Exclusive, 0, None, None);
                whole.push((part.row, ticket));
            } else if kind != Zeroing::Deallocate {
                let ticket = stripe.enter_zeros(&part);
                rest.push((part.row, ticket));
            }
        }
        let mut result = Ok(());
        for (_, ticket) in &whole {
            poll_fn(|cx| ticket.poll_turn(cx)).await;
        }
        if let (Some((first, _)), Some((last, _))) = (whole.first(), whole.last()) {
            result = self.zero_rows(*first..last + 1, kind).await;
        }
        drop(whole);
        let count = rest.len();
        let writes = rest.into_iter().map(|(row, ticket)| self.run_write(row, ticket));
        fan_out(count, writes, |(done, _)| result = result.and(done)).await;
        drop(permit);
        result
    }

    async fn zero_row_by_row(&self, offset_bytes: u64, len_bytes: u64, kind: Zeroing) -> Done {
        let stripe = self.stripe();
        let permit = self.shared.begin_write(self.endpoint.core()).await?;
        let mut result = Ok(());
        for part in stripe.row_parts(offset_bytes, len_bytes) {
            let bytes = u64::from(part.len);
            if bytes == stripe.shape.row_bytes {
                let ticket = stripe.rows.enter(part.row, Kind::Exclusive, 0, None, None);
                poll_fn(|cx| ticket.poll_turn(cx)).await;
                result = result.and(self.zero_rows(part.row..part.row + 1, kind).await);
            } else if kind != Zeroing::Deallocate {
                let ticket = stripe.enter_zeros(&part);
                result = result.and(self.run_write(part.row, ticket).await.0);
            }
        }
        drop(permit);
        result
    }

    /// Zeroes whole rows, which are held; one only if there is a log.
    async fn zero_rows(&self, rows: Range<u64>, kind: Zeroing) -> Done {
        let geometry = self.shared.geometry();
        let cannot_zero =
            |slot: usize| self.member(slot).is_some_and(|member| member.cannot_zero());
        if kind == Zeroing::Deallocate && self.writable().iter().any(cannot_zero) {
            return Ok(());
        }
        let range = geometry.row_range(rows.start).start..geometry.row_range(rows.end - 1).end;
        let token = self.begin_intent(range).await?;
        let mut zeroed = Zeroed::default();
        let mut result = Ok(());
        if self.shared.intent.has_log() {
            debug_assert_eq!(rows.end - rows.start, 1, "a record is for one row");
            result = self.zero_logged(rows.start, kind, &mut zeroed).await;
        } else {
            self.zero_and_fit(rows.clone(), kind, &mut zeroed).await;
        }
        let Zeroed { outcome, parked } = zeroed;
        if !parked.is_empty() {
            self.park(rows, token, parked);
            return Err(self.failed_under(outcome.failed));
        }
        let no_space = outcome.no_space.map(|slot| ArrayError::NoSpace { slot });
        let settled = self.settled(outcome.failed).await;
        let ended = self.shared.intent.end(self, token, !outcome.differs).await;
        settled.and(result).and(no_space.map_or(Ok(()), Err)).and(ended)
    }

    async fn zero_logged(&self, row: u64, kind: Zeroing, zeroed: &mut Zeroed) -> Done {
        let shape = &self.stripe().shape;
        let checks = Checks { new: Some(self.check_of_zeros()), old: None };
        let record = || LogRecord {
            row,
            within_bytes: 0,
            len_bytes: shape.chunk_bytes,
            first: 0,
            count: shape.data_chunks,
            p: None,
            q: None,
            checks,
        };
        let token = loop {
            self.check_not_failed()?;
            let epoch = self.shared.epoch();
            let token = self.shared.intent.log(self, record()).await?;
            if self.shared.epoch() == epoch {
                break token;
            }
            self.shared.intent.logged_end(token);
        };
        self.zero_and_fit(row..row + 1, kind, zeroed).await;
        if zeroed.outcome.failed.is_some() {
            // The record is good for as long as a start could believe that member.
            let _ = self.shared.settled().await;
        }
        self.shared.intent.logged_end(token);
        Ok(())
    }

    /// The log's checksum of a row of zeros.
    fn check_of_zeros(&self) -> u32 {
        let stripe = self.stripe();
        let compute = || {
            let mut zeros = Check::new();
            let step = self.zeros.len().max(1) as u64;
            for at in (0..stripe.shape.row_bytes).step_by(step as usize) {
                zeros.add(&self.zeros[..step.min(stripe.shape.row_bytes - at) as usize]);
            }
            zeros.value()
        };
        *stripe.zeros_check.get_or_init(compute)
    }

    /// Zeroes whole rows on all members that take writes. If some were zeroed in part only, makes
    /// their parity fit what their members have.
    async fn zero_and_fit(&self, rows: Range<u64>, kind: Zeroing, zeroed: &mut Zeroed) {
        let geometry = self.shared.geometry();
        let range =
            geometry.row_component_offset(rows.start)..geometry.row_component_offset(rows.end);
        let mut outcome = self.zero_places(range.clone(), kind).await;
        let again = || self.zero_places(range.clone(), kind);
        let slice = Slice { start: 0, len: self.stripe().shape.chunk_bytes, modified: Roles::NONE };
        let fit = match self.until_done(&mut outcome, again).await {
            Parking::NotNeeded => outcome.no_space.is_some(),
            Parking::InVain => true,
            Parking::Parked => {
                let redo = Redo::Zero { range, kind };
                zeroed.parked.push(ParkedJob { redo, rows: rows.clone(), slice });
                false
            }
        };
        for row in rows.filter(|_| fit) {
            if self.check_not_failed().is_err() || self.sync_row(row).await.is_err() {
                let parity = self.row_members(row).writable & Roles::PARITIES;
                outcome.differs |= self.distrust(row, &slice, parity);
            }
        }
        zeroed.outcome.merge(outcome);
    }

    /// Zeroes the same range of all members that take writes. Those that turn out to have no
    /// operation for it are written, as the others have been zeroed already.
    pub(super) async fn zero_places(&self, range: Range<u64>, kind: Zeroing) -> Outcome {
        let mut outcome = Outcome::default();
        let geometry = self.shared.geometry();
        let row = geometry.row_of_component(range.start);
        let armed = Armed::new(&self.shared, geometry.row_range(row).start);
        let len_bytes = range.end - range.start;
        let deallocate = kind != Zeroing::Write { deallocate: false };
        let writable = self.writable();
        let mut unsupported = Vec::new();
        let place = |slot| Place { slot, offset_bytes: range.start };
        let zeroings = writable.iter().map(|slot| async move {
            (slot, self.zero_member(place(slot), len_bytes, deallocate).await)
        });
        fan_out(writable.len(), zeroings, |(slot, result)| match result {
            Err(failed) if failed.error == DriveError::Unsupported => unsupported.push(slot),
            result => outcome.add(result),
        })
        .await;
        for slot in unsupported {
            let mut at = range.start;
            while at < range.end {
                let len = (range.end - at).min(self.zeros.len() as u64);
                let zeros = self.zeros.slice(..len as usize);
                let result =
                    self.write_member(Place { slot, offset_bytes: at }, zeros, false).await;
                let stop = result.is_err();
                outcome.add(result);
                if stop {
                    break;
                }
                at += len;
            }
        }
        armed.disarm();
        outcome
    }
}
