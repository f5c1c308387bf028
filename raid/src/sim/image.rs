//! The bytes of a simulated drive: pages that are made when they are first written.

use std::ops::Range;

/// The unit in which a simulated drive is looked at.
pub(crate) const SECTOR_BYTES: usize = 512;

const PAGE_BYTES: usize = 4096;

/// The bytes. What was never written is zeros, but for a range that is full of junk.
#[derive(Clone)]
pub(crate) struct Image {
    pages: Vec<Option<Box<[u8; PAGE_BYTES]>>>,
    junk: Range<usize>,
    junk_byte: u8,
}

impl Image {
    pub(crate) fn new(size_bytes: usize) -> Self {
        let pages = vec![None; size_bytes.div_ceil(PAGE_BYTES)];
        Self { pages, junk: 0..0, junk_byte: 0 }
    }

    /// Fills a range of whole pages, of which nothing was ever written, with a byte.
    pub(crate) fn set_junk(&mut self, range: Range<usize>, byte: u8) {
        (self.junk, self.junk_byte) = (range, byte);
    }

    fn unwritten(&self, page: usize) -> u8 {
        if self.junk.contains(&(page * PAGE_BYTES)) { self.junk_byte } else { 0 }
    }

    pub(crate) fn read(&self, offset: usize, into: &mut [u8]) {
        let mut done = 0;
        while done < into.len() {
            let (page, from) = ((offset + done) / PAGE_BYTES, (offset + done) % PAGE_BYTES);
            let len = (PAGE_BYTES - from).min(into.len() - done);
            let part = &mut into[done..done + len];
            match &self.pages[page] {
                Some(bytes) => part.copy_from_slice(&bytes[from..from + len]),
                None => part.fill(self.unwritten(page)),
            }
            done += len;
        }
    }

    /// What all bytes of a range are, if nothing was ever written there.
    pub(crate) fn unwritten_byte(&self, offset: usize, len: usize) -> Option<u8> {
        let pages = offset / PAGE_BYTES..(offset + len).div_ceil(PAGE_BYTES);
        let byte = self.unwritten(pages.start);
        let is_unwritten = |page: usize| self.pages[page].is_none() && self.unwritten(page) == byte;
        pages.clone().all(is_unwritten).then_some(byte)
    }

    /// Whether all of a range of whole pages is zeros.
    pub(crate) fn is_zero(&self, offset: usize, len: usize) -> bool {
        let mut pages = offset / PAGE_BYTES..(offset + len) / PAGE_BYTES;
        pages.all(|page| match &self.pages[page] {
            Some(bytes) => bytes.iter().all(|&byte| byte == 0),
            None => self.unwritten(page) == 0,
        })
    }

    pub(crate) fn write(&mut self, offset: usize, data: &[u8]) {
        let mut done = 0;
        while done < data.len() {
            let (page, from) = ((offset + done) / PAGE_BYTES, (offset + done) % PAGE_BYTES);
            let len = (PAGE_BYTES - from).min(data.len() - done);
            let unwritten = self.unwritten(page);
            let bytes = self.pages[page].get_or_insert_with(|| Box::new([unwritten; PAGE_BYTES]));
            bytes[from..from + len].copy_from_slice(&data[done..done + len]);
            done += len;
        }
    }

    /// Makes a range of whole pages zeros.
    pub(crate) fn zero(&mut self, offset: usize, len: usize) {
        assert!(offset.is_multiple_of(PAGE_BYTES) && len.is_multiple_of(PAGE_BYTES));
        if self.junk.start >= offset && self.junk.end <= offset + len {
            self.junk = 0..0;
        }
        assert!(self.junk.is_empty() || self.junk.end <= offset || self.junk.start >= offset + len);
        self.pages[offset / PAGE_BYTES..(offset + len) / PAGE_BYTES].fill(None);
    }

    /// Makes a range like that of another image of the same drive.
    pub(crate) fn copy(&mut self, other: &Self, offset: usize, len: usize) {
        let mut buffer = [0; PAGE_BYTES];
        let mut done = 0;
        while done < len {
            let part = PAGE_BYTES.min(len - done);
            other.read(offset + done, &mut buffer[..part]);
            self.write(offset + done, &buffer[..part]);
            done += part;
        }
    }
}
