//! What each block of the array may contain: the set of values that the engine's promises allow.
//!
//! Every write has a number, and fills its blocks with it. For every block the model keeps all
//! writes since the last collapse, each with the moments when it was asked for and answered.
//!
//! A write `v` is *superseded* by `w` if `w` succeeded and `v` was answered before `w` was asked
//! for. Then:
//! * A read may return any write that was not superseded by one answered before the read began.
//! * A read may not go back: if a read that began after `v` and `u` were answered returned `u`,
//!   then no read that begins after its end returns `v`.
//! * After a power cut a block may hold any write not superseded by a *safe* one: one that was
//!   answered before a flush began that succeeded, or had FUA.
//!
//! Number 0 is what was there at the beginning, and what zeroing writes.

/// A moment in the order of everything that happens to the model.
type Moment = u64;

/// Never.
const NEVER: Moment = u64::MAX;

#[derive(Clone, Debug)]
struct Write {
    number: u64,
    asked: Moment,
    answered: Moment,
    succeeded: bool,
    is_safe: bool,
    /// When reads that began after it had been answered, and returned it, began and ended.
    seen: Vec<(Moment, Moment)>,
}

/// A write in the model, to be answered.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    first_block: usize,
    blocks: usize,
    moment: Moment,
}

/// See the file's head.
pub(crate) struct Model {
    blocks: Vec<Vec<Write>>,
    now: Moment,
    next_number: u64,
}

impl Model {
    pub(crate) fn new(blocks: usize) -> Self {
        let first = Self::settled(0);
        Self { blocks: vec![vec![first]; blocks], now: 1, next_number: 1 }
    }

    fn settled(number: u64) -> Write {
        Write { number, asked: 0, answered: 0, succeeded: true, is_safe: true, seen: Vec::new() }
    }

    fn tick(&mut self) -> Moment {
        self.now += 1;
        self.now
    }

    /// A number for a write.
    pub(crate) fn new_number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// A write is asked for.
    pub(crate) fn ask(&mut self, first_block: usize, blocks: usize, number: u64) -> Asked {
        let moment = self.tick();
        for block in &mut self.blocks[first_block..first_block + blocks] {
            let (answered, is_safe) = (NEVER, false);
            let write = Write {
                number,
                asked: moment,
                answered,
                succeeded: false,
                is_safe,
                seen: Vec::new(),
            };
            block.push(write);
        }
        Asked { first_block, blocks, moment }
    }

    /// It is answered.
    pub(crate) fn answer(&mut self, asked: &Asked, succeeded: bool, fua: bool) {
        let now = self.tick();
        for block in &mut self.blocks[asked.first_block..asked.first_block + asked.blocks] {
            for write in block.iter_mut().filter(|write| write.asked == asked.moment) {
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
        for write in self.blocks.iter_mut().flatten() {
            if write.succeeded && write.answered < began {
                write.is_safe = true;
            }
        }
    }

    /// A read that began at `began` returned `number` for a block.
    ///
    /// # Errors
    /// Says why that is not allowed.
    pub(crate) fn read(&mut self, block: usize, began: Moment, number: u64) -> Result<(), String> {
        let writes = &self.blocks[block];
        let is_superseded = |v: &Write| {
            writes.iter().any(|w| w.succeeded && w.answered < began && v.answered < w.asked)
        };
        let is_overtaken = |v: &Write| {
            let seen_after =
                |u: &Write| u.seen.iter().any(|&(from, to)| from > v.answered && to < began);
            writes.iter().any(|u| u.number != v.number && seen_after(u))
        };
        let is_allowed = |v: &Write| v.number == number && !is_superseded(v) && !is_overtaken(v);
        if !writes.iter().any(is_allowed) {
            let what = format!("reads {number} in a read begun at {began}");
            return Err(format!("block {block} {what}; its writes: {writes:#?}"));
        }
        let now = self.tick();
        for write in &mut self.blocks[block] {
            // Among writes of zeros (all number 0) it may have been any.
            if write.number == number && write.answered < began && number != 0 {
                write.seen.push((began, now));
            }
        }
        Ok(())
    }

    /// After a power cut a block was found to hold `number`: from now on it holds that alone.
    ///
    /// # Errors
    /// Says why that is not allowed.
    pub(crate) fn found_after_power_cut(
        &mut self,
        block: usize,
        number: u64,
    ) -> Result<(), String> {
        let writes = &self.blocks[block];
        let is_superseded = |v: &Write| writes.iter().any(|w| w.is_safe && v.answered < w.asked);
        if !writes.iter().any(|v| v.number == number && !is_superseded(v)) {
            let what = format!("holds {number} after a power cut");
            return Err(format!("block {block} {what}; its writes: {writes:#?}"));
        }
        self.blocks[block] = vec![Self::settled(number)];
        Ok(())
    }

    /// The process has ended: nothing will be answered any more.
    pub(crate) fn restart(&mut self) {
        let now = self.tick();
        for write in self.blocks.iter_mut().flatten() {
            write.answered = write.answered.min(now);
        }
    }

    /// Number of blocks.
    pub(crate) fn blocks(&self) -> usize {
        self.blocks.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A model of one block with two writes one after the other, the first flushed.
    fn two_writes() -> Model {
        let mut model = Model::new(1);
        let first = model.ask(0, 1, 1);
        model.answer(&first, true, false);
        let began = model.begin();
        model.flushed(began);
        let second = model.ask(0, 1, 2);
        model.answer(&second, true, false);
        model
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
        for fine in [1, 2] {
            assert_eq!(two_writes().found_after_power_cut(0, fine), Ok(()));
        }
        assert!(two_writes().found_after_power_cut(0, 0).is_err());
    }

    #[test]
    fn writes_under_way_may_be_seen_but_not_unseen_later() {
        let mut model = Model::new(1);
        let asked = model.ask(0, 1, 5);
        let began = model.begin();
        for either in [5, 0, 5] {
            assert_eq!(model.read(0, began, either), Ok(()));
        }
        // It fails, so either may be there; but once it was seen it stays.
        model.answer(&asked, false, false);
        let began = model.begin();
        assert_eq!(model.read(0, began, 5), Ok(()));
        assert_eq!(model.read(0, began, 0), Ok(()), "read at the same time");
        let began = model.begin();
        assert!(model.read(0, began, 0).is_err());
    }
}
