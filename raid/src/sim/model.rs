//! What each sector of the array may contain: the set of values that the engine's promises allow.
//!
//! Every write has a value of its own. For every sector the model keeps all writes since it was
//! last cleared up, each with the moments when it was asked for and answered.
//!
//! A write `v` is *superseded* by `w` if `w` succeeded and `v` was answered before `w` was asked
//! for. Then:
//! * A read may return any write that was not superseded by one answered before the read began.
//! * A read may not go back: if a read that began after `v` and `u` were answered returned `u`,
//!   then no read that begins after its end returns `v`.
//! * After a power cut a sector may hold any write not superseded by a *safe* one: one that was
//!   answered before a flush began that succeeded, or had FUA. The first read settles which.
//!
//! Where the operator has accepted a risk, or the engine may not know better, values that stand for
//! several are allowed ([`ANYTHING`], [`ANY_EARLIER`]); the first read settles what they are.

use std::ops::Range;

use super::value::{ANY_EARLIER, ANYTHING, Value, ZERO, show};

/// A moment in the order of everything that happens to the model.
type Moment = u64;

/// Never.
const NEVER: Moment = u64::MAX;

#[derive(Clone, Debug)]
struct Write {
    value: Value,
    asked: Moment,
    answered: Moment,
    succeeded: bool,
    is_safe: bool,
    /// One of several that a power cut may have left.
    is_candidate: bool,
    /// When reads that began after it had been answered, and returned it, began and ended.
    seen: Vec<(Moment, Moment)>,
}

impl Write {
    fn settled(value: Value, answered: Moment) -> Self {
        let (asked, seen) = (0, Vec::new());
        let (succeeded, is_safe, is_candidate) = (true, true, true);
        Self { value, asked, answered, succeeded, is_safe, is_candidate, seen }
    }

    fn is_superseded_by(&self, other: &Self) -> bool {
        other.succeeded && self.answered < other.asked
    }
}

/// A write in the model, to be answered.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    sectors: Range<usize>,
    moment: Moment,
}

/// All about one sector.
#[derive(Clone)]
struct Sector {
    writes: Vec<Write>,
    /// What it ever may have had.
    history: Vec<Value>,
    /// It may be unreadable until it is written.
    may_fail: bool,
}

/// The values that a sector may have before the first write.
type Initial = Box<dyn Fn(usize) -> Vec<Value>>;

/// See the file's head.
pub(crate) struct Model {
    sectors: Vec<Option<Box<Sector>>>,
    initial: Initial,
    now: Moment,
    next_value: Value,
}

impl Model {
    pub(crate) fn new(sectors: usize, initial: Initial) -> Self {
        Self { sectors: vec![None; sectors], initial, now: 1, next_value: 1 }
    }

    fn tick(&mut self) -> Moment {
        self.now += 1;
        self.now
    }

    fn sector(&mut self, number: usize) -> &mut Sector {
        let initial = &self.initial;
        self.sectors[number].get_or_insert_with(|| {
            let history = initial(number);
            let writes = history.iter().map(|&value| Write::settled(value, 0)).collect();
            Box::new(Sector { writes, history, may_fail: false })
        })
    }

    fn known(&mut self) -> impl Iterator<Item = &mut Box<Sector>> {
        self.sectors.iter_mut().flatten()
    }

    /// Whether anything was ever asked of this sector.
    pub(crate) fn is_known(&self, sector: usize) -> bool {
        self.sectors[sector].is_some()
    }

    /// The values that a sector may have before the first write.
    pub(crate) fn initial(&self, sector: usize) -> Vec<Value> {
        (self.initial)(sector)
    }

    /// A value for a write.
    pub(crate) fn new_value(&mut self) -> Value {
        self.next_value += 1;
        self.next_value
    }

    /// A write is asked for.
    pub(crate) fn ask(&mut self, sectors: Range<usize>, value: Value) -> Asked {
        let moment = self.tick();
        for number in sectors.clone() {
            let sector = self.sector(number);
            sector.history.push(value);
            sector.writes.push(Write {
                value,
                asked: moment,
                answered: NEVER,
                succeeded: false,
                is_safe: false,
                is_candidate: false,
                seen: Vec::new(),
            });
        }
        Asked { sectors, moment }
    }

    /// It is answered.
    pub(crate) fn answer(&mut self, asked: &Asked, succeeded: bool, fua: bool) {
        let now = self.tick();
        for number in asked.sectors.clone() {
            let sector = self.sector(number);
            sector.may_fail &= !succeeded;
            let mine = |write: &&mut Write| write.asked == asked.moment;
            for write in sector.writes.iter_mut().filter(mine) {
                write.answered = now;
                write.succeeded = succeeded;
                write.is_safe = succeeded && fua;
            }
        }
    }

    /// Something begins.
    pub(crate) fn begin(&mut self) -> Moment {
        self.tick()
    }

    /// A flush that began at `began` succeeded.
    pub(crate) fn flushed(&mut self, began: Moment) {
        for sector in self.known() {
            for write in &mut sector.writes {
                write.is_safe |= write.succeeded && write.answered < began;
            }
        }
    }

    /// A read that began at `began` returned `value` for a sector, as [`Self::read`] has it, but from
    /// an array that does not vouch for what is read later: nothing is settled by it.
    ///
    /// # Errors
    /// Says why that is not allowed.
    pub(crate) fn glance(
        &mut self,
        number: usize,
        began: Moment,
        value: Value,
    ) -> Result<(), String> {
        let before = Sector::clone(self.sector(number));
        let result = self.read(number, began, value);
        *self.sector(number) = before;
        result
    }

    /// A read that began at `began` returned `value` for a sector.
    ///
    /// # Errors
    /// Says why that is not allowed.
    pub(crate) fn read(
        &mut self,
        number: usize,
        began: Moment,
        value: Value,
    ) -> Result<(), String> {
        let sector = self.sector(number);
        let writes = &sector.writes;
        let is_superseded =
            |v: &Write| writes.iter().any(|w| w.answered < began && v.is_superseded_by(w));
        let is_overtaken = |v: &Write| {
            let seen_after =
                |u: &Write| u.seen.iter().any(|&(from, to)| from > v.answered && to < began);
            writes.iter().any(|u| u.value != v.value && seen_after(u))
        };
        let matches = |v: &Write| match v.value {
            ANYTHING => true,
            ANY_EARLIER => sector.history.contains(&value),
            other => other == value,
        };
        let is_allowed = |v: &Write| matches(v) && !is_superseded(v) && !is_overtaken(v);
        // One that is exactly this rather than one that stands for it.
        let exact = writes.iter().position(|v| v.value == value && is_allowed(v));
        // Zeros may also be those of a write since then, which need not be there after the next cut.
        let is_open = writes.iter().any(|v| v.value == value && !v.is_candidate && is_allowed(v));
        let Some(index) = exact.or_else(|| writes.iter().position(is_allowed)) else {
            let what = format!("reads {} in a read begun at {began}", show(value));
            return Err(format!("sector {number} {what}; {}", Self::tell(sector)));
        };
        sector.writes[index].value = value;
        if sector.writes[index].is_candidate && !is_open {
            let kept = sector.writes[index].clone();
            sector.writes.retain(|write| !write.is_candidate);
            sector.writes.insert(0, kept);
        }
        let now = self.tick();
        for write in &mut self.sector(number).writes {
            // Among writes of zeros it may have been any.
            if write.value == value && write.answered < began && value != ZERO {
                write.seen.push((began, now));
            }
        }
        Ok(())
    }

    fn tell(sector: &Sector) -> String {
        let tell = |write: &Write| {
            let at = |moment: Moment| match moment {
                NEVER => "never".to_string(),
                moment => moment.to_string(),
            };
            format!(
                "\n    {}: asked at {}, answered at {}{}{}{}, seen {:?}",
                show(write.value),
                write.asked,
                at(write.answered),
                if write.succeeded { "" } else { ", not successful" },
                if write.is_safe { ", safe" } else { "" },
                if write.is_candidate { ", from a power cut or before" } else { "" },
                write.seen
            )
        };
        format!("its writes:{}", sector.writes.iter().map(tell).collect::<String>())
    }

    /// The power has been cut: what a sector may hold now.
    pub(crate) fn power_cut(&mut self) {
        let now = self.tick();
        for sector in self.known() {
            let writes = &sector.writes;
            let is_lost = |v: &Write| writes.iter().any(|w| w.is_safe && v.is_superseded_by(w));
            let mut values: Vec<Value> =
                writes.iter().filter(|v| !is_lost(v)).map(|v| v.value).collect();
            values.sort_unstable();
            values.dedup();
            sector.writes = values.into_iter().map(|value| Write::settled(value, now)).collect();
        }
    }

    /// Some drive has lost what it had not kept yet, the others have not: what was not safe need not
    /// be there, but may be, and is not safe either.
    pub(crate) fn lose_cache(&mut self) {
        for sector in self.known() {
            for write in &mut sector.writes {
                write.succeeded &= write.is_safe;
                write.seen.clear();
            }
        }
    }

    /// The process has ended: nothing will be answered any more. If the array `has_failed`, what was
    /// seen of writes that failed need not be what is seen of them later.
    pub(crate) fn restart(&mut self, has_failed: bool) {
        let now = self.tick();
        for sector in self.known() {
            if has_failed && sector.writes.iter().any(|write| !write.succeeded) {
                sector.writes.iter_mut().for_each(|write| write.seen.clear());
            }
            for write in &mut sector.writes {
                write.answered = write.answered.min(now);
            }
        }
    }

    /// The sectors that writes may have left half done at a power cut now, or at the end of the
    /// process: those under way, and with `unflushed` also those that no flush has made safe.
    pub(crate) fn exposed(&self, unflushed: bool) -> Vec<usize> {
        let is_exposed = |write: &Write| {
            write.answered == NEVER || !write.succeeded || unflushed && !write.is_safe
        };
        let sectors = self.sectors.iter().enumerate();
        sectors
            .filter(|(_, s)| s.as_ref().is_some_and(|s| s.writes.iter().any(is_exposed)))
            .map(|(number, _)| number)
            .collect()
    }

    /// The sector may hold any value until it is read or written.
    pub(crate) fn allow_anything(&mut self, sector: usize) {
        let now = self.tick();
        self.sector(sector).writes.push(Write::settled(ANYTHING, now));
    }

    /// Every sector may hold any value that it ever had, until it is read or written.
    pub(crate) fn allow_earlier(&mut self) {
        let now = self.tick();
        for sector in self.known() {
            sector.writes = vec![Write::settled(ANY_EARLIER, now)];
        }
    }

    /// The sector may be unreadable until it is written.
    pub(crate) fn allow_failure(&mut self, sector: usize) {
        self.sector(sector).may_fail = true;
    }

    /// Whether a read of these sectors may fail for that.
    pub(crate) fn may_fail(&self, sectors: Range<usize>) -> bool {
        self.sectors[sectors].iter().flatten().any(|sector| sector.may_fail)
    }

    /// Number of sectors.
    pub(crate) fn sectors(&self) -> usize {
        self.sectors.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> Model {
        Model::new(1, Box::new(|_| vec![ZERO]))
    }

    /// A model of one sector with two writes one after the other, the first flushed.
    fn two_writes() -> Model {
        let mut model = model();
        let first = model.ask(0..1, 1);
        model.answer(&first, true, false);
        let began = model.begin();
        model.flushed(began);
        let second = model.ask(0..1, 2);
        model.answer(&second, true, false);
        model
    }

    fn read(model: &mut Model, value: Value) -> Result<(), String> {
        let began = model.begin();
        model.read(0, began, value)
    }

    #[test]
    fn only_the_newest_may_be_read() {
        let mut model = two_writes();
        let began = model.begin();
        assert_eq!(model.read(0, began, 2), Ok(()));
        for stale in [0, 1, 7] {
            assert!(model.read(0, began, stale).is_err(), "{stale}");
        }
    }

    #[test]
    fn a_power_cut_may_take_what_was_not_flushed() {
        for (found, other) in [(1, 2), (2, 1)] {
            let mut model = two_writes();
            model.power_cut();
            assert_eq!(read(&mut model, found), Ok(()));
            assert!(read(&mut model, other).is_err(), "the first read settles it");
            model.power_cut();
            assert!(read(&mut model, other).is_err(), "also after another cut");
        }
        let mut model = two_writes();
        model.power_cut();
        assert!(read(&mut model, 0).is_err());
    }

    #[test]
    fn what_is_written_after_a_power_cut_replaces_all_that_may_be_there() {
        let mut model = two_writes();
        model.power_cut();
        let asked = model.ask(0..1, 3);
        model.answer(&asked, true, false);
        for old in [1, 2] {
            assert!(read(&mut model, old).is_err());
        }
        assert_eq!(read(&mut model, 3), Ok(()));
    }

    #[test]
    fn writes_under_way_may_be_seen_but_not_unseen_later() {
        let mut model = model();
        let asked = model.ask(0..1, 5);
        let began = model.begin();
        for either in [5, 0, 5] {
            assert_eq!(model.read(0, began, either), Ok(()));
        }
        // It fails, so either may be there; but once it was seen it stays.
        model.answer(&asked, false, false);
        let began = model.begin();
        assert_eq!(model.read(0, began, 5), Ok(()));
        assert_eq!(model.read(0, began, 0), Ok(()), "read at the same time");
        assert!(read(&mut model, 0).is_err());
    }

    #[test]
    fn zeros_that_several_may_have_written_settle_nothing() {
        let mut model = two_writes();
        let zeros = model.ask(0..1, ZERO);
        model.answer(&zeros, true, false);
        model.power_cut();
        let again = model.ask(0..1, ZERO);
        assert_eq!(read(&mut model, ZERO), Ok(()));
        model.answer(&again, false, false);
        model.power_cut();
        assert_eq!(read(&mut model, 2), Ok(()), "the new zeros were what was read, and are lost");
        assert!(read(&mut model, ZERO).is_err());
    }

    #[test]
    fn what_stands_for_several_values_is_settled_by_the_first_read() {
        let mut model = two_writes();
        model.allow_earlier();
        assert!(read(&mut model, 7).is_err(), "it never had that");
        assert_eq!(read(&mut model, 1), Ok(()));
        assert!(read(&mut model, 2).is_err());
        model.allow_anything(0);
        assert_eq!(read(&mut model, 7), Ok(()));
        assert!(read(&mut model, 8).is_err());
    }

    #[test]
    fn exposed_is_what_is_under_way_or_not_flushed() {
        let mut model = two_writes();
        assert_eq!((model.exposed(true), model.exposed(false)), (vec![0], vec![]));
        let began = model.begin();
        model.flushed(began);
        assert!(model.exposed(true).is_empty());
        let _under_way = model.ask(0..1, 9);
        assert_eq!(model.exposed(false), [0]);
    }
}
