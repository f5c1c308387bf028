//! What each block may hold after a loss of power: what was last made durable, or anything that the
//! host has sent since; whole, and the same on every later read.

use super::trace::{HostWrite, Time, Trace};

/// A host's block, in bytes.
pub const BLOCK_BYTES: usize = 4096;

/// What a block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// Zeros: never written, or by Write Zeroes.
    Zeros,
    /// What the write of this number wrote.
    Write(u64),
}

/// The host's writes, by block.
pub struct Model {
    /// Each block's writes, as they began; none of a block overlap in time.
    blocks: Vec<Vec<HostWrite>>,
}

/// What the blocks of a write consist of, over and over (SplitMix64, as in `tests/guest/writer`).
fn token(id: u64) -> u64 {
    let mut mixed = id.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

impl Value {
    /// Whether a block, which is number `block`, holds this.
    pub fn is(self, block: u64, data: &[u8]) -> bool {
        let mut unit = [0; 16];
        if let Self::Write(id) = self {
            unit[..8].copy_from_slice(&block.to_le_bytes());
            unit[8..].copy_from_slice(&token(id).to_le_bytes());
        }
        data.chunks_exact(unit.len()).all(|found| found == unit)
    }
}

impl Model {
    /// The model of a run on so many blocks.
    pub fn new(trace: &Trace, blocks: usize) -> Self {
        let mut model = Self { blocks: vec![Vec::new(); blocks] };
        for write in &trace.writes {
            for block in write.block..write.block + write.blocks {
                model.blocks[block as usize].push(write.clone());
            }
        }
        model
    }

    /// How many blocks it knows of; nobody wrote to those behind them.
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// What a block may hold if power is lost just before `now`; the durable value comes last.
    pub fn allowed(&self, block: u64, now: Time) -> Vec<Value> {
        let mut values = Vec::new();
        let begun = self.blocks[block as usize].iter().rev().filter(|write| write.begin < now);
        for write in begun {
            values.push(if write.zeros { Value::Zeros } else { Value::Write(write.id) });
            if write.durable < now {
                return values;
            }
        }
        values.push(Value::Zeros);
        values
    }

    /// What a block holds, in words, if it is anything that was ever written to it.
    pub fn tell(&self, block: u64, data: &[u8]) -> String {
        let ids = self.blocks[block as usize].iter().map(|write| Value::Write(write.id));
        match ids.chain([Value::Zeros]).find(|value| value.is(block, data)) {
            Some(value) => format!("{value:?}"),
            None => format!("what nobody wrote: {:02x?}…", &data[..16]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::trace::read;
    use super::*;

    #[test]
    fn a_block_may_hold_what_was_sent_since_it_was_last_durable() {
        let text = "S 1 0 2 w\nA 1\nF 1\nG 1\nS 2 1 1 w\nA 2\nS 3 1 1 z\nA 3\nF 2\nG 2";
        let model = Model::new(&read(text, 0, 0).unwrap(), 3);
        let write = Value::Write;
        assert_eq!(model.allowed(0, 0), [Value::Zeros]);
        assert_eq!(model.allowed(0, 3), [write(1), Value::Zeros]);
        assert_eq!(model.allowed(0, 4), [write(1)]);
        assert_eq!(model.allowed(1, 8), [Value::Zeros, write(2), write(1)]);
        assert_eq!(model.allowed(1, 10), [Value::Zeros]);
        assert_eq!(model.allowed(2, 10), [Value::Zeros]);
    }

    #[test]
    fn contents_are_those_of_the_block_and_the_write() {
        let mut data = [5u64.to_le_bytes(), token(9).to_le_bytes()].concat().repeat(256);
        assert!(Value::Write(9).is(5, &data));
        assert!(!Value::Write(9).is(6, &data));
        assert!(!Value::Write(8).is(5, &data));
        data[4095] ^= 1;
        assert!(!Value::Write(9).is(5, &data));
        assert!(Value::Zeros.is(5, &[0; 4096]));
    }
}
