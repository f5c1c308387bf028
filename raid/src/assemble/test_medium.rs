//! A drive in memory for tests: sparse, with a log of what was written durably across
//! all drives that share it, and an error at a chosen call.

use crate::device::Medium;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;

type Pages = BTreeMap<u64, Box<[u8; 4096]>>;

/// One call that changed a drive, or made sure of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Call {
    Write { drive: usize, offset_bytes: u64, data: Vec<u8> },
    Zero { drive: usize, offset_bytes: u64, len_bytes: u64 },
    Flush { drive: usize },
}

/// What several drives share: the order of calls, and when one fails.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    pub(crate) calls: Vec<Call>,
    /// So many calls succeed before one fails.
    pub(crate) fail_after: Option<usize>,
}

#[derive(Debug, Clone)]
pub(crate) struct TestMedium {
    pub(crate) drive: usize,
    size_bytes: u64,
    zeroes: bool,
    pages: Rc<RefCell<Pages>>,
    journal: Rc<RefCell<Journal>>,
}

impl TestMedium {
    /// Blank drives of these sizes with a common journal; `zeroes`: as files can.
    pub(crate) fn drives(sizes: &[u64], zeroes: bool) -> Vec<Self> {
        let journal = Rc::new(RefCell::new(Journal::default()));
        let drive = |(drive, size): (usize, &u64)| Self {
            drive,
            size_bytes: *size,
            zeroes,
            pages: Rc::default(),
            journal: Rc::clone(&journal),
        };
        sizes.iter().enumerate().map(drive).collect()
    }

    pub(crate) fn journal(&self) -> &RefCell<Journal> {
        &self.journal
    }

    /// The same bytes, changed independently from now on (and nothing in the journal).
    pub(crate) fn copies(drives: &[Self]) -> Vec<Self> {
        let sizes: Vec<_> = drives.iter().map(|d| d.size_bytes).collect();
        let copies = Self::drives(&sizes, drives.iter().all(|d| d.zeroes));
        for (copy, drive) in copies.iter().zip(drives) {
            copy.pages.replace(drive.pages.borrow().clone());
        }
        copies
    }

    /// Changes bytes behind everybody's back.
    pub(crate) fn put(&self, offset_bytes: u64, data: &[u8]) {
        let mut pages = self.pages.borrow_mut();
        let (mut at, mut rest) = (offset_bytes, data);
        while !rest.is_empty() {
            let within = (at % 4096) as usize;
            let (part, after) = rest.split_at(rest.len().min(4096 - within));
            let page = pages.entry(at / 4096).or_insert_with(|| Box::new([0; 4096]));
            page[within..within + part.len()].copy_from_slice(part);
            at += part.len() as u64;
            rest = after;
        }
    }

    /// Applies a recorded call, of a write only the sectors whose bit is set.
    pub(crate) fn replay(drives: &[Self], call: &Call, sectors: u64) {
        match call {
            Call::Write { drive, offset_bytes, data } => {
                for (i, sector) in data.chunks(512).enumerate() {
                    if i >= 64 || sectors >> i & 1 == 1 {
                        drives[*drive].put(offset_bytes + 512 * i as u64, sector);
                    }
                }
            }
            Call::Zero { drive, offset_bytes, len_bytes } => {
                drives[*drive].forget(*offset_bytes, *len_bytes);
            }
            Call::Flush { .. } => {}
        }
    }

    fn forget(&self, offset_bytes: u64, len_bytes: u64) {
        assert!(offset_bytes.is_multiple_of(4096) && len_bytes.is_multiple_of(4096));
        let within = offset_bytes / 4096..(offset_bytes + len_bytes) / 4096;
        self.pages.borrow_mut().retain(|page, _| !within.contains(page));
    }

    fn check(&self, offset_bytes: u64, len: usize) -> io::Result<()> {
        if offset_bytes + len as u64 > self.size_bytes {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }

    fn call(&self, call: Call) -> io::Result<()> {
        let mut journal = self.journal.borrow_mut();
        if journal.fail_after == Some(journal.calls.len()) {
            return Err(io::Error::from_raw_os_error(5));
        }
        journal.calls.push(call);
        Ok(())
    }
}

impl Medium for TestMedium {
    fn name(&self) -> String {
        format!("drive-{}", self.drive)
    }

    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        self.check(offset_bytes, buf.len())?;
        buf.fill(0);
        let end = offset_bytes + buf.len() as u64;
        let pages = self.pages.borrow();
        for (number, page) in pages.range(offset_bytes / 4096..end.div_ceil(4096)) {
            let begin = number * 4096;
            let from = begin.max(offset_bytes);
            let to = (begin + 4096).min(end);
            buf[(from - offset_bytes) as usize..(to - offset_bytes) as usize]
                .copy_from_slice(&page[(from - begin) as usize..(to - begin) as usize]);
        }
        Ok(())
    }

    fn write_durable(&self, offset_bytes: u64, data: &[u8]) -> io::Result<()> {
        self.check(offset_bytes, data.len())?;
        assert!(
            offset_bytes.is_multiple_of(4096) && data.len().is_multiple_of(4096),
            "whole blocks of any drive"
        );
        self.call(Call::Write { drive: self.drive, offset_bytes, data: data.to_vec() })?;
        self.put(offset_bytes, data);
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.call(Call::Flush { drive: self.drive })
    }

    fn zero_cheaply(&self, offset_bytes: u64, len_bytes: u64) -> io::Result<bool> {
        if self.zeroes {
            self.call(Call::Zero { drive: self.drive, offset_bytes, len_bytes })?;
            self.forget(offset_bytes, len_bytes);
        }
        Ok(self.zeroes)
    }
}
